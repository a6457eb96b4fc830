// Directory watches. They share one queue of changes, because every kernel limits those.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"
#include "platform.h"

enum { DIRECTORIES_LIMIT = 65536, WATCHERS_LIMIT = FILES_LIMIT, LEVELS_LIMIT = 256, BUCKETS = 1024, FRAME_BYTES = 32 * 1024 };

struct watcher {
  struct object object;
  int root;
  // Why its events are not complete, or 0.
  int error;
  bool is_recursive;
};

/** A directory as watched for one watcher. */
struct watched {
  struct watched *next;
  struct watcher *watcher;
  int directory;
  // Cookie of the rename that moved this directory or one above it, and the length of the moved path. The cookie is 0
  // without such a rename, and when the new path is known.
  uint32_t cookie;
  uint16_t moved_length;
  // Names reported when the directory was found, whose creation may still be queued.
  char **fresh;
  unsigned fresh_count;
  // Path below the root of the watch.
  char path[];
};

static int changes = -1;
static unsigned watcher_count, directory_count;
static struct watched *buckets[BUCKETS];
static bool has_fresh;
static uint32_t moving;

static struct writer frame;
static struct watcher *frame_owner;

static struct watched **bucket_of(int directory) { return &buckets[(unsigned)directory % BUCKETS]; }

static void forget_fresh(struct watched *watched) {
  for (unsigned index = 0; index < watched->fresh_count; index++) free(watched->fresh[index]);
  free(watched->fresh);
  watched->fresh = NULL;
  watched->fresh_count = 0;
}

static bool is_watched(int directory) {
  for (struct watched *watched = *bucket_of(directory); watched != NULL; watched = watched->next) {
    if (watched->directory == directory) return true;
  }
  return false;
}

static void unlink_watched(struct watched **link) {
  struct watched *watched = *link;
  int directory = watched->directory;
  *link = watched->next;
  forget_fresh(watched);
  free(watched);
  directory_count--;
  if (!is_watched(directory)) platform_changes_remove(changes, directory);
}

/** Removes the directories of a watcher, or, for NULL, those that a rename moved away. */
static void forget(const struct watcher *watcher) {
  for (unsigned index = 0; index < BUCKETS; index++) {
    for (struct watched **link = &buckets[index]; *link != NULL;) {
      if (watcher ? (*link)->watcher == watcher : (*link)->cookie != 0) unlink_watched(link);
      else link = &(*link)->next;
    }
  }
}

// --- telling

static void finish(void) {
  if (frame_owner == NULL) return;
  frame_owner->object.credit -= (int64_t)frame.length - HEADER_BYTES + FRAME_COST;
  finish_frame(&frame);
  frame_owner = NULL;
}

static void tell(struct watcher *watcher, uint8_t kind, const char *path, const char *name) {
  // A released one has no id any more: the server takes no more frames for it.
  if (watcher->error != 0 || watcher->object.is_dead) return;
  if (frame_owner != watcher || frame.length > FRAME_BYTES) finish();
  if (frame_owner == NULL) {
    // A watcher that is too slow loses its watch, without an effect on others.
    if (watcher->object.credit <= 0 || room() < REPLY_BYTES) {
      watcher->error = EOVERFLOW;
      return;
    }
    frame = begin_frame(REPLY_CHANGES, watcher->object.id);
    frame_owner = watcher;
  }
  size_t path_length = strlen(path), name_length = strlen(name);
  put_u8(&frame, kind);
  put_u16(&frame, (uint16_t)(path_length + (path_length > 0) + name_length));
  put_bytes(&frame, path, path_length);
  if (path_length > 0) put_u8(&frame, '/');
  put_bytes(&frame, name, name_length);
}

static void tell_broken(void) {
  finish();
  for (struct object *object = objects; object != NULL; object = object->next) {
    int error = object->kind == &watcher_kind && !object->is_dead ? ((struct watcher *)object)->error : 0;
    if (error == 0) continue;
    send_error(object->id, STAGE_WATCH, error, "");
    object->is_dead = true;
  }
}

// --- finding directories

static struct watched *add(struct watcher *watcher, int fd, const char *path) {
  size_t length = strlen(path);
  if (directory_count >= DIRECTORIES_LIMIT) {
    errno = ENOSPC;
    return NULL;
  }
  int directory = platform_changes_add(changes, fd);
  if (directory < 0) return NULL;
  for (struct watched *known = *bucket_of(directory); known != NULL; known = known->next) {
    if (known->directory == directory && known->watcher == watcher) return known;
  }
  struct watched *watched = calloc(1, sizeof *watched + length + 1);
  if (watched == NULL) return NULL;
  watched->watcher = watcher;
  watched->directory = directory;
  memcpy(watched->path, path, length + 1);
  watched->next = *bucket_of(directory);
  *bucket_of(directory) = watched;
  directory_count++;
  return watched;
}

static void remember_fresh(struct watched *watched, const char *name) {
  // Grows at powers of two.
  unsigned count = watched->fresh_count;
  if ((count & (count - 1)) == 0) {
    char **fresh = realloc(watched->fresh, (count ? 2 * count : 1) * sizeof *fresh);
    if (fresh == NULL) return;
    watched->fresh = fresh;
  }
  char *copy = strdup(name);
  if (copy == NULL) return;
  watched->fresh[watched->fresh_count++] = copy;
  has_fresh = true;
}

static bool take_fresh(struct watched *watched, const char *name) {
  for (unsigned index = 0; index < watched->fresh_count; index++) {
    if (strcmp(watched->fresh[index], name) != 0) continue;
    free(watched->fresh[index]);
    watched->fresh[index] = watched->fresh[--watched->fresh_count];
    return true;
  }
  return false;
}

/** True for a non-empty file: it was written, maybe before its directory was watched. */
static bool is_written(int directory, const struct dirent *entry) {
  struct stat status;
  if (entry->d_type != DT_REG && entry->d_type != DT_UNKNOWN) return false;
  if (fstatat(directory, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) return false;
  return S_ISREG(status.st_mode) && status.st_size > 0;
}

/**
 * Watches a directory and those below it. Takes ownership of the descriptor. With `is_new`, its entries are reported:
 * they may have been created before the directory was watched.
 * @return 0 or an errno.
 */
static int watch_tree(struct watcher *watcher, int fd, char path[PATH_MAX], unsigned levels, bool is_new) {
  struct watched *watched = add(watcher, fd, path);
  if (watched == NULL || !watcher->is_recursive) {
    int error = watched ? 0 : errno;
    close(fd);
    return error;
  }
  DIR *directory = fdopendir(fd);
  if (directory == NULL) {
    close(fd);
    return errno;
  }
  size_t length = strlen(path);
  int error = 0;
  const struct dirent *entry;
  while (error == 0 && (entry = readdir(directory)) != NULL) {
    const char *name = entry->d_name;
    size_t name_length = strlen(name);
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || files_is_temporary(name)) continue;
    if (is_new) {
      tell(watcher, CHANGE_CREATE, path, name);
      remember_fresh(watched, name);
      if (is_written(fd, entry)) tell(watcher, CHANGE_WRITE, path, name);
    }
    if (entry->d_type != DT_DIR && entry->d_type != DT_UNKNOWN) continue;
    if (length + name_length + 2 > PATH_MAX || levels >= LEVELS_LIMIT) continue;
    int below = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (below < 0) {
      // Its events would be missed in silence.
      if (is_out_of_descriptors(errno)) error = errno;
      continue;
    }
    if (length > 0) path[length] = '/';
    memcpy(path + length + (length > 0), name, name_length + 1);
    error = watch_tree(watcher, below, path, levels + 1, is_new);
    path[length] = 0;
    // Already gone.
    if (error == ENOENT) error = 0;
  }
  closedir(directory);
  return error;
}

/** Opens a directory below the root of a watch, without following links. */
static int open_below(int root, const char *path) {
  int fd = fcntl(root, F_DUPFD_CLOEXEC, 3);
  while (fd >= 0 && *path != 0) {
    char name[NAME_MAX + 1];
    size_t length = strcspn(path, "/");
    if (length > NAME_MAX) length = NAME_MAX;
    memcpy(name, path, length);
    name[length] = 0;
    path += length + (path[length] == '/');
    int next = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    close(fd);
    fd = next;
  }
  return fd;
}

// --- changes

static bool join(char path[PATH_MAX], const char *directory, const char *name) {
  size_t length = strlen(directory), name_length = strlen(name);
  if (length + name_length + 2 > PATH_MAX) return false;
  memcpy(path, directory, length);
  if (length > 0) path[length++] = '/';
  memcpy(path + length, name, name_length + 1);
  return true;
}

static void directory_left(struct watcher *watcher, const char *path, uint32_t cookie) {
  size_t length = strlen(path);
  moving = cookie;
  for (unsigned index = 0; index < BUCKETS; index++) {
    for (struct watched *watched = buckets[index]; watched != NULL; watched = watched->next) {
      if (watched->watcher != watcher || strncmp(watched->path, path, length) != 0) continue;
      if (watched->path[length] != 0 && watched->path[length] != '/') continue;
      watched->cookie = cookie;
      watched->moved_length = (uint16_t)length;
    }
  }
}

static struct watched *renamed(const struct watched *old, const char *path) {
  size_t length = strlen(path), rest = strlen(old->path + old->moved_length);
  struct watched *watched = malloc(sizeof *watched + length + rest + 1);
  if (watched == NULL) return NULL;
  memcpy(watched, old, sizeof *watched);
  memcpy(watched->path, path, length);
  memcpy(watched->path + length, old->path + old->moved_length, rest + 1);
  watched->cookie = 0;
  return watched;
}

/** Handles the second half of a rename. @return false when no watched directory was moved away. */
static bool directory_came_back(struct watcher *watcher, const char *path, uint32_t cookie) {
  bool has_come_back = false;
  for (unsigned index = 0; index < BUCKETS && cookie != 0; index++) {
    for (struct watched **link = &buckets[index]; *link != NULL; link = &(*link)->next) {
      if ((*link)->watcher != watcher || (*link)->cookie != cookie) continue;
      struct watched *old = *link, *watched = renamed(old, path);
      if (watched == NULL) continue;
      *link = watched;
      free(old);
      has_come_back = true;
    }
  }
  return has_come_back;
}

static void directory_came(struct watcher *watcher, char path[PATH_MAX], uint32_t cookie) {
  if (directory_came_back(watcher, path, cookie)) return;
  int fd = open_below(watcher->root, path);
  int error = fd >= 0 ? watch_tree(watcher, fd, path, 0, true) : is_out_of_descriptors(errno) ? errno : 0;
  // A directory that cannot be watched is a loss of events.
  if (error != 0 && error != ENOENT) watcher->error = error;
}

/** Linux reports modes and owners of unnamed files, as `#` and a number. */
static bool is_unnamed(const struct watched *watched, const struct change *change) {
  const char *name = change->name;
  if (change->kind != CHANGE_MODE || name[0] != '#' || name[1] == 0) return false;
  if (strspn(name + 1, "0123456789") != strlen(name + 1)) return false;
  int directory = open_below(watched->watcher->root, watched->path);
  if (directory < 0) return false;
  struct stat status;
  bool is_there = fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0;
  close(directory);
  return !is_there;
}

static void apply(struct watched *watched, const struct change *change) {
  struct watcher *watcher = watched->watcher;
  char path[PATH_MAX];
  if (change->name[0] == 0 || files_is_temporary(change->name) || is_unnamed(watched, change)) return;
  bool is_told = take_fresh(watched, change->name) && change->kind == CHANGE_CREATE;
  if (!is_told) tell(watcher, change->kind, watched->path, change->name);
  if (is_told || !change->is_directory || !watcher->is_recursive) return;
  if (!join(path, watched->path, change->name)) return;
  if (change->kind == CHANGE_RENAME) directory_left(watcher, path, change->cookie);
  else if (change->kind == CHANGE_CREATE) directory_came(watcher, path, change->cookie);
}

static void break_all(int error) {
  for (struct object *object = objects; object != NULL; object = object->next) {
    if (object->kind == &watcher_kind) ((struct watcher *)object)->error = error;
  }
}

static void on_change(const struct change *change) {
  if (moving != 0 && change->cookie != moving) {
    forget(NULL);
    moving = 0;
  }
  if (change->kind == CHANGE_OVERFLOW) {
    break_all(change->error != 0 ? change->error : EOVERFLOW);
    return;
  }
  // Applying changes these lists, so the concerned watchers are collected first.
  struct watcher *concerned[WATCHERS_LIMIT];
  unsigned count = 0;
  for (struct watched *watched = *bucket_of(change->directory); watched != NULL; watched = watched->next) {
    if (watched->directory == change->directory && count < WATCHERS_LIMIT) concerned[count++] = watched->watcher;
  }
  for (unsigned index = 0; index < count; index++) {
    struct watched **link = bucket_of(change->directory);
    while (*link != NULL && ((*link)->directory != change->directory || (*link)->watcher != concerned[index])) {
      link = &(*link)->next;
    }
    if (*link == NULL) continue;
    if (change->kind == CHANGE_GONE) unlink_watched(link);
    else apply(*link, change);
  }
}

void watch_ready(void) {
  bool has_more = changes >= 0 && platform_changes_read(changes, on_change);
  tell_broken();
  if (has_more) return;
  // The queue is empty: the second halves of renames will not come any more.
  if (moving != 0) forget(NULL);
  moving = 0;
  for (unsigned index = 0; index < BUCKETS && has_fresh; index++) {
    for (struct watched *watched = buckets[index]; watched != NULL; watched = watched->next) forget_fresh(watched);
  }
  has_fresh = false;
}

void watch_follow(void) {
  if (changes >= 0 && room() >= 2 * REPLY_BYTES) watch_ready();
}

bool watch_prepare(void) {
  if (changes < 0 || room() < 2 * REPLY_BYTES) return false;
  watch_descriptor(changes, POLLIN, NULL, ROLE_CHANGES);
  // Read again at once, until the queue is empty.
  return has_fresh || moving != 0;
}

/**
 * Refuses a network file system, because changes from elsewhere are not reported. The file system of the root is
 * allowed: only the sandbox changes its root.
 * @return 0 or an errno.
 */
static int require_local(int fd) {
  int is_network = platform_is_network(fd);
  if (is_network <= 0) return is_network < 0 ? errno : 0;
  int root = platform_open("/", O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
  if (root < 0) return errno;
  struct stat there, here;
  int error = fstat(root, &here) < 0 || fstat(fd, &there) < 0 ? errno : 0;
  if (error == 0 && here.st_dev != there.st_dev) error = EREMOTE;
  close(root);
  return error;
}

static int open_watched(const char *path, bool allows_network_mounts, int *fd) {
  *fd = platform_open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC, 0);
  if (*fd < 0) return errno;
  int error = allows_network_mounts ? 0 : require_local(*fd);
  if (error == 0 && changes < 0) {
    changes = platform_changes_open();
    if (changes < 0) error = errno;
  }
  if (error != 0) close(*fd);
  return error;
}

void start_watch(uint32_t id, const struct request *request) {
  char path[PATH_MAX] = "";
  int fd = -1;
  int error = open_watched(request->path.bytes, request->flags & WATCH_NETWORK_MOUNTS, &fd);
  struct watcher *watcher = error == 0 ? add_object(sizeof *watcher, &watcher_kind, id) : NULL;
  if (error == 0 && watcher == NULL) {
    error = EMFILE;
    close(fd);
  }
  if (watcher != NULL) {
    watcher_count++;
    watcher->is_recursive = request->flags & WATCH_RECURSIVE;
    watcher->object.credit = request->credit;
    watcher->root = fd;
    int root = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    error = root < 0 ? errno : watch_tree(watcher, root, path, 0, false);
    if (error != 0) watcher->object.is_dead = true;
  }
  if (error != 0) send_error(id, STAGE_WATCH, error, "");
  else send_empty(REPLY_DONE, id);
}

static void watch_free(struct object *object) {
  struct watcher *watcher = (struct watcher *)object;
  forget(watcher);
  close(watcher->root);
  if (--watcher_count > 0) return;
  close(changes);
  changes = -1;
  moving = 0;
  has_fresh = false;
}

const struct kind watcher_kind = {WATCHERS_LIMIT, .free = watch_free};
