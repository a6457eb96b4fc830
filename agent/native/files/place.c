// Paths: resolution within the root, and creation of missing parents.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "../platform.h"
#include "files.h"

enum { LINKS_LIMIT = 40 };

void close_place(struct place *place) {
  if (place->parent >= 0) close(place->parent);
  place->parent = -1;
}

bool is_dots(const char *name) { return strcmp(name, ".") == 0 || strcmp(name, "..") == 0; }

int open_directory(const char *path) { return platform_open(path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0); }

DIR *open_entries(int fd) {
  DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
  int error = errno;
  if (entries == NULL && fd >= 0) close(fd);
  errno = error;
  return entries;
}

/** Splits a path before its last component; if that is no name, `.` is the name. */
static int split(const char *path, char parent[PATH_MAX], char name[NAME_MAX + 1]) {
  size_t length = strlen(path);
  while (length > 1 && path[length - 1] == '/') length--;
  size_t start = length;
  while (start > 0 && path[start - 1] != '/') start--;
  if (length - start > NAME_MAX || length >= PATH_MAX) return ENAMETOOLONG;
  memcpy(name, path + start, length - start);
  name[length - start] = 0;
  if (name[0] == 0 || is_dots(name)) {
    strcpy(name, ".");
    start = length;
  }
  memcpy(parent, path, start);
  parent[start] = 0;
  return 0;
}

int find_place(const char *path, struct place *place) {
  place->parent = -1;
  place->exists = place->is_behind_link = false;
  int error = split(path, place->parent_path, place->name);
  if (error != 0) return error;
  place->parent = open_directory(place->parent_path);
  if (place->parent < 0) return errno;
  place->exists = fstatat(place->parent, place->name, &place->status, AT_SYMLINK_NOFOLLOW) == 0;
  return place->exists || errno == ENOENT ? 0 : errno;
}

int find_target(const char *path, struct place *place) {
  static char next[2 * PATH_MAX];
  for (unsigned links = 0; links <= LINKS_LIMIT; links++) {
    int error = find_place(links == 0 ? path : next, place);
    place->is_behind_link = links > 0;
    if (error != 0 || !place->exists || !S_ISLNK(place->status.st_mode)) return error;
    char target[PATH_MAX];
    ssize_t length = readlinkat(place->parent, place->name, target, sizeof target - 1);
    error = errno;
    close_place(place);
    if (length < 0) {
      // No longer a link.
      if (error == EINVAL || error == ENOENT) continue;
      return error;
    }
    target[length] = 0;
    const char *base = target[0] == '/' ? "" : place->parent_path;
    int written = snprintf(next, sizeof next, "%s%s%s", base, target[0] == '/' ? "" : "/", target);
    if (written >= PATH_MAX) return ENAMETOOLONG;
  }
  return ELOOP;
}

int set_owner(int directory, const char *name, const struct account *owner) {
  if (owner->is_self) return 0;
  return fchownat(directory, name, owner->uid, owner->gid, AT_SYMLINK_NOFOLLOW) < 0 ? errno : 0;
}

/** Creates one directory, if it is still missing, and opens it. @return a descriptor, or -1 with errno. */
static int make_one(int above, const char *name, const struct account *owner) {
  bool is_made = mkdirat(above, name, DIRECTORY_MODE) == 0;
  if (!is_made && errno != EEXIST) return -1;
  int error = is_made ? set_owner(above, name, owner) : 0;
  errno = error;
  return error ? -1 : openat(above, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/** Creates a directory and its missing parents. */
static int make_directories(const char *path, const struct account *owner) {
  char prefix[PATH_MAX], name[NAME_MAX + 1];
  int above = open_directory("/");
  int error = above < 0 ? errno : 0;
  for (const char *end = path; error == 0;) {
    const char *start = end + strspn(end, "/");
    end = start + strcspn(start, "/");
    if (end == start) break;
    if (end - start > NAME_MAX) error = ENAMETOOLONG;
    snprintf(prefix, sizeof prefix, "%.*s", (int)(end - path), path);
    snprintf(name, sizeof name, "%.*s", (int)(end - start), start);
    int directory = error == 0 ? open_directory(prefix) : -1;
    // `..` is missing only while the path to it changes. Opened by itself, it could lead out of the root.
    if (error == 0 && directory < 0 && errno == ENOENT && !is_dots(name)) directory = make_one(above, name, owner);
    if (error == 0 && directory < 0) error = errno;
    close(above);
    above = directory;
  }
  if (above >= 0) close(above);
  return error;
}

int find_making_parents(const char *path, bool follows, const struct account *owner, struct place *place) {
  int error = 0;
  for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
    error = follows ? find_target(path, place) : find_place(path, place);
    if (error != ENOENT || place->parent >= 0) return error;
    error = make_directories(place->parent_path, owner);
    if (error != 0) return error;
  }
  return error == 0 ? EAGAIN : error;
}

/** First existing component of a path that is no directory, for the error message. */
static const char *blocking_component(const char *path) {
  static char part[PATH_MAX];
  size_t length = strnlen(path, sizeof part - 1);
  for (size_t end = 1; end <= length; end++) {
    if (end < length && path[end] != '/') continue;
    memcpy(part, path, end);
    part[end] = 0;
    struct stat status;
    int fd = platform_open(part, O_PATH | O_CLOEXEC, 0);
    if (fd < 0) return "";
    bool is_directory = fstat(fd, &status) == 0 && S_ISDIR(status.st_mode);
    close(fd);
    if (!is_directory) return part;
  }
  return "";
}

int open_above(const char *path) {
  char above[PATH_MAX];
  snprintf(above, sizeof above, "%s", path);
  for (;;) {
    int directory = open_directory(above);
    char *slash = strrchr(above, '/');
    if (directory >= 0 || errno != ENOENT || slash == NULL || above[1] == 0) return directory;
    slash[slash == above] = 0;
  }
}

/** True when the file system of a path has free space but no free inode. */
static bool lacks_inodes(const char *path) {
  struct place place;
  struct statvfs status;
  find_target(path, &place);
  int directory = place.parent < 0 ? open_above(place.parent_path) : place.parent;
  bool is_known = directory >= 0 && fstatvfs(directory, &status) == 0;
  if (directory >= 0) close(directory);
  // Some file systems count no inodes, or no blocks.
  return is_known && status.f_files > 0 && status.f_favail == 0 && (status.f_bavail > 0 || status.f_blocks == 0);
}

void fail_file(uint32_t id, int error, const char *path) {
  if ((error == ENOSPC || error == EDQUOT) && lacks_inodes(path)) return send_error(id, STAGE_FILE, error, "inodes");
  if (error != ENOTDIR) return send_error(id, STAGE_FILE, error, "");
  send_error(id, STAGE_PARENT, error, blocking_component(path));
}
