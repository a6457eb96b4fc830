// Removals of directory trees. The main loop runs several at once, each a few entries at a time.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../platform.h"
#include "files.h"

enum { REMOVE_LEVELS = 128, REMOVE_PASSES = 1000 };

struct remove_level {
  DIR *directory;
  unsigned passes;
  char name[NAME_MAX + 1];
};

struct removal {
  struct object object;
  struct account actor;
  // Parent directory of the tree.
  int parent;
  unsigned level_count, moved_count;
  struct remove_level levels[REMOVE_LEVELS];
};

static int descriptor_of(const struct removal *removal, unsigned level_count) {
  return level_count == 0 ? removal->parent : dirfd(removal->levels[level_count - 1].directory);
}

static int enter_tree(struct removal *removal, const char *name) {
  int above = descriptor_of(removal, removal->level_count);
  if (removal->level_count == REMOVE_LEVELS) {
    // A tree can be deeper than the limit of open directories. A deeper directory is moved into the top directory of
    // the tree, which is read again when it is not empty.
    char moved[64];
    snprintf(moved, sizeof moved, ".coppice-removed-%u", ++removal->moved_count);
    if (renameat(above, name, descriptor_of(removal, 1), moved) == 0 || errno == ENOENT) return 0;
    return errno;
  }
  DIR *directory = open_entries(openat(above, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  // The last two are the errors of systems for a link.
  bool is_gone = directory == NULL && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == EMLINK);
  if (directory == NULL) return is_gone ? 0 : errno;
  struct remove_level *level = &removal->levels[removal->level_count++];
  level->directory = directory;
  level->passes = 0;
  snprintf(level->name, sizeof level->name, "%s", name);
  return 0;
}

static int remove_entry(struct removal *removal, const char *name, bool is_directory) {
  if (is_directory) return enter_tree(removal, name);
  if (unlinkat(descriptor_of(removal, removal->level_count), name, 0) == 0 || errno == ENOENT) return 0;
  // Errors of Linux and POSIX for a directory; the second has other meanings, too.
  int error = errno;
  struct stat status;
  if (error != EISDIR && error != EPERM) return error;
  if (fstatat(descriptor_of(removal, removal->level_count), name, &status, AT_SYMLINK_NOFOLLOW) < 0) return 0;
  return S_ISDIR(status.st_mode) ? enter_tree(removal, name) : error;
}

static int leave_tree(struct removal *removal) {
  struct remove_level *level = &removal->levels[removal->level_count - 1];
  int above = descriptor_of(removal, removal->level_count - 1);
  if (unlinkat(above, level->name, AT_REMOVEDIR) < 0) {
    bool is_filled = errno == ENOTEMPTY || errno == EEXIST;
    if (is_filled && ++level->passes < REMOVE_PASSES) {
      rewinddir(level->directory);
      return 0;
    }
    if (errno != ENOENT && errno != ENOTDIR) return errno;
  }
  closedir(level->directory);
  removal->level_count--;
  return 0;
}

static bool removal_run(struct object *object) {
  struct removal *removal = (struct removal *)object;
  moment++;
  if (room() < REPLY_BYTES) return false;
  int error = act(&removal->actor);
  for (unsigned count = 0; error == 0 && count < ENTRIES_PER_TURN && removal->level_count > 0; count++) {
    const struct dirent *entry = readdir(removal->levels[removal->level_count - 1].directory);
    if (entry == NULL) error = leave_tree(removal);
    else if (!is_dots(entry->d_name)) error = remove_entry(removal, entry->d_name, entry->d_type == DT_DIR);
  }
  platform_act_as_self();
  if (error == 0 && removal->level_count > 0) return true;
  if (error == 0) send_empty(REPLY_DONE, removal->object.id);
  else send_error(removal->object.id, STAGE_FILE, error, "");
  removal->object.is_dead = true;
  return false;
}

void start_removal(uint32_t id, const char *path, const struct account *actor) {
  struct place place;
  int error = find_place(path, &place);
  if (error == 0 && strcmp(place.name, ".") == 0) error = strspn(path, "/") == strlen(path) ? EBUSY : EINVAL;
  bool is_gone = error == ENOENT || error == ENOTDIR || (error == 0 && !place.exists);
  bool is_directory = error == 0 && !is_gone && S_ISDIR(place.status.st_mode);
  if (error == 0 && !is_gone && !is_directory && unlinkat(place.parent, place.name, 0) < 0 && errno != ENOENT) {
    error = errno;
    is_directory = error == EISDIR;
  }
  struct removal *removal = is_directory ? add_object(sizeof *removal, &removal_kind, id) : NULL;
  if (removal != NULL) {
    removal->parent = place.parent;
    removal->actor = *actor;
    error = enter_tree(removal, place.name);
    if (error == 0) return;
    send_error(id, STAGE_FILE, error, "");
    removal->object.is_dead = true;
    return;
  }
  close_place(&place);
  if (is_directory) send_error(id, STAGE_FILE, EMFILE, "");
  else if (error == 0 || is_gone) send_empty(REPLY_DONE, id);
  else send_error(id, STAGE_FILE, error, "");
}

static void removal_free(struct object *object) {
  struct removal *removal = (struct removal *)object;
  while (removal->level_count > 0) closedir(removal->levels[--removal->level_count].directory);
  close(removal->parent);
}

const struct kind removal_kind = {FILES_LIMIT, .free = removal_free, .pump = removal_run};
