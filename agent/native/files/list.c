// Lists of directories. The main loop runs several at once, each a few entries at a time.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../platform.h"
#include "files.h"

enum { LIST_LEVELS_LIMIT = 1024, LIST_NAMES_LIMIT = 1024 * 1024, LIST_FRAME_BYTES = 32 * 1024 };

struct list_level {
  int fd;
  char **names;
  unsigned count, next;
  size_t path_length;
};

struct listing {
  struct object object;
  struct account actor;
  uint32_t depth;
  unsigned level_count, name_count;
  struct list_level *levels;
  char path[PATH_MAX];
};

static int compare_names(const void *one, const void *other) {
  return strcmp(*(char *const *)one, *(char *const *)other);
}

static int read_names(struct listing *listing, struct list_level *level) {
  DIR *directory = open_entries(fcntl(level->fd, F_DUPFD_CLOEXEC, 3));
  if (directory == NULL) return errno;
  unsigned capacity = 0;
  int error = 0;
  const struct dirent *entry;
  while (error == 0 && (entry = readdir(directory)) != NULL) {
    if (is_dots(entry->d_name)) continue;
    if (level->count == capacity) {
      capacity = capacity == 0 ? 32 : capacity * 2;
      char **names = realloc(level->names, capacity * sizeof *names);
      if (names == NULL) error = ENOMEM;
      else level->names = names;
    }
    if (listing->name_count >= LIST_NAMES_LIMIT) error = EOVERFLOW;
    char *name = error == 0 ? strdup(entry->d_name) : NULL;
    if (name == NULL) {
      if (error == 0) error = ENOMEM;
      break;
    }
    level->names[level->count++] = name;
    listing->name_count++;
  }
  closedir(directory);
  if (level->count > 0) qsort(level->names, level->count, sizeof *level->names, compare_names);
  return error;
}

static void leave_level(struct listing *listing) {
  struct list_level *level = &listing->levels[--listing->level_count];
  for (unsigned index = 0; index < level->count; index++) free(level->names[index]);
  listing->name_count -= level->count;
  free(level->names);
  close(level->fd);
}

/** Takes ownership of the descriptor. */
static int enter_level(struct listing *listing, int fd) {
  int error = listing->level_count >= LIST_LEVELS_LIMIT ? EOVERFLOW : 0;
  struct list_level *levels =
      error == 0 ? realloc(listing->levels, (listing->level_count + 1) * sizeof *levels) : NULL;
  if (levels == NULL) {
    close(fd);
    return error ? error : ENOMEM;
  }
  listing->levels = levels;
  struct list_level *level = &levels[listing->level_count++];
  *level = (struct list_level){.fd = fd, .path_length = strlen(listing->path)};
  error = read_names(listing, level);
  if (error != 0) leave_level(listing);
  return error;
}

void start_listing(uint32_t id, const struct request *request, const struct account *actor) {
  int fd = platform_open(request->path.bytes, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC, 0);
  if (fd < 0) return send_error(id, STAGE_FILE, errno, "");
  struct listing *listing = add_object(sizeof *listing, &listing_kind, id);
  if (listing == NULL) {
    close(fd);
    return send_error(id, STAGE_FILE, EMFILE, "");
  }
  listing->actor = *actor;
  listing->object.credit = request->credit;
  listing->depth = request->depth;
  strcpy(listing->path, request->path.bytes);
  for (size_t length = strlen(listing->path); length > 0 && listing->path[length - 1] == '/';) listing->path[--length] = 0;
  int error = enter_level(listing, fd);
  if (error == 0) return;
  listing->object.is_dead = true;
  send_error(id, STAGE_FILE, error, "");
}

/** Writes one entry, unless it has gone, and enters it if it is a directory. */
static int list_entry(struct listing *listing, struct writer *frame, const char *root) {
  struct list_level *level = &listing->levels[listing->level_count - 1];
  const char *name = level->names[level->next++];
  size_t length = level->path_length + 1 + strlen(name);
  if (length >= sizeof listing->path) return 0;
  listing->path[level->path_length] = '/';
  strcpy(listing->path + level->path_length + 1, name);
  struct stat status;
  int fd = openat(level->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return 0;
  int error = 0;
  if (fstat(fd, &status) == 0) {
    put_text(frame, listing->path + strlen(root) + 1);
    put_info(frame, fd, &status, listing->path);
    if (S_ISDIR(status.st_mode) && listing->level_count < listing->depth) {
      int directory = openat(level->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
      // An unreadable or removed directory is listed but not entered.
      if (directory >= 0) error = enter_level(listing, directory);
    }
  }
  close(fd);
  return error;
}

static bool listing_run(struct object *object) {
  struct listing *listing = (struct listing *)object;
  moment++;
  if (object->credit <= 0 || !is_connected() || room() < 2 * REPLY_BYTES) return false;
  int error = act(&listing->actor);
  struct writer frame = begin_frame(REPLY_ENTRIES, object->id);
  char root[PATH_MAX];
  snprintf(root, sizeof root, "%.*s", (int)listing->levels[0].path_length, listing->path);
  for (unsigned count = 0; error == 0 && count < ENTRIES_PER_TURN && frame.length < LIST_FRAME_BYTES;) {
    struct list_level *level = &listing->levels[listing->level_count - 1];
    if (level->next < level->count) {
      error = list_entry(listing, &frame, root);
      count++;
    } else {
      leave_level(listing);
      if (listing->level_count == 0) break;
    }
  }
  platform_act_as_self();
  if (frame.length > HEADER_BYTES) {
    object->credit -= (int64_t)frame.length - HEADER_BYTES + FRAME_COST;
    finish_frame(&frame);
  }
  if (error != 0) send_error(object->id, STAGE_FILE, error, "");
  else if (listing->level_count == 0) send_empty(REPLY_DONE, object->id);
  object->is_dead = error != 0 || listing->level_count == 0;
  return !object->is_dead && object->credit > 0 && room() >= 2 * REPLY_BYTES;
}

static void listing_free(struct object *object) {
  struct listing *listing = (struct listing *)object;
  while (listing->level_count > 0) leave_level(listing);
  free(listing->levels);
}

const struct kind listing_kind = {FILES_LIMIT, .free = listing_free, .pump = listing_run};
