// Files: one request, one answer, except for lists, removals and large writes, which take turns.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "agent.h"
#include "platform.h"

enum {
  LINKS_LIMIT = 40,
  ATTEMPTS = 8,
  ENTRIES_PER_TURN = 128,
  LIST_LEVELS_LIMIT = 1024,
  LIST_NAMES_LIMIT = 1024 * 1024,
  LIST_FRAME_BYTES = 32 * 1024,
  REMOVE_LEVELS = 128,
  REMOVE_PASSES = 1000,
  METADATA_BYTES = 32 * 1024,
  DIRECTORY_MODE = 0755,
};

static const char METADATA_PREFIX[] = "user.e2b.";
enum { METADATA_PREFIX_LENGTH = sizeof METADATA_PREFIX - 1 };

// --- finding

/** Target of a path: an entry, existing or not, of an open directory. */
struct place {
  int parent;
  char name[NAME_MAX + 1];
  // Path of the parent, whether or not links were resolved.
  char parent_path[PATH_MAX];
  bool exists;
  struct stat status;
};

static void leave(struct place *place) {
  if (place->parent >= 0) close(place->parent);
  place->parent = -1;
}

static bool is_dots(const char *name) { return strcmp(name, ".") == 0 || strcmp(name, "..") == 0; }

static int open_directory(const char *path) { return platform_open(path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0); }

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

/** Leaves `parent` at -1 when the directory itself is missing. @return 0, even for a missing entry, or an errno. */
static int find(const char *path, struct place *place) {
  place->parent = -1;
  place->exists = false;
  int error = split(path, place->parent_path, place->name);
  if (error != 0) return error;
  place->parent = open_directory(place->parent_path);
  if (place->parent < 0) return errno;
  place->exists = fstatat(place->parent, place->name, &place->status, AT_SYMLINK_NOFOLLOW) == 0;
  return place->exists || errno == ENOENT ? 0 : errno;
}

/** As `find`, but follows a link in the last component to an existing or missing target. */
static int find_target(const char *path, struct place *place) {
  static char next[2 * PATH_MAX];
  for (unsigned links = 0; links <= LINKS_LIMIT; links++) {
    int error = find(links == 0 ? path : next, place);
    if (error != 0 || !place->exists || !S_ISLNK(place->status.st_mode)) return error;
    char target[PATH_MAX];
    ssize_t length = readlinkat(place->parent, place->name, target, sizeof target - 1);
    error = errno;
    leave(place);
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

static int own(int directory, const char *name, const struct account *owner) {
  if (owner == NULL) return 0;
  return fchownat(directory, name, owner->uid, owner->gid, AT_SYMLINK_NOFOLLOW) < 0 ? errno : 0;
}

/** Creates one directory, if it is still missing, and opens it. @return a descriptor, or -1 with errno. */
static int make_one(int above, const char *name, const struct account *owner) {
  bool is_made = mkdirat(above, name, DIRECTORY_MODE) == 0;
  if (!is_made && errno != EEXIST) return -1;
  int error = is_made ? own(above, name, owner) : 0;
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
    if (error == 0 && directory < 0 && errno == ENOENT) directory = make_one(above, name, owner);
    if (error == 0 && directory < 0) error = errno;
    close(above);
    above = directory;
  }
  if (above >= 0) close(above);
  return error;
}

static int find_making_parents(const char *path, bool follows, const struct account *owner, struct place *place) {
  int error = 0;
  for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
    error = follows ? find_target(path, place) : find(path, place);
    if (error != ENOENT || place->parent >= 0) return error;
    error = make_directories(place->parent_path, owner);
    if (error != 0) return error;
  }
  return error == 0 ? EAGAIN : error;
}

/** First existing component of a path that is no directory, for the error message. */
static const char *part_in_the_way(const char *path) {
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

/** Opens the nearest existing directory above a path. */
static int open_above(const char *path) {
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

static void fail(uint32_t id, int error, const char *path) {
  if ((error == ENOSPC || error == EDQUOT) && lacks_inodes(path)) return send_error(id, STAGE_FILE, error, "inodes");
  if (error != ENOTDIR) return send_error(id, STAGE_FILE, error, "");
  send_error(id, STAGE_PARENT, error, part_in_the_way(path));
}

// --- telling

static uint8_t kind_of(mode_t mode) { return S_ISREG(mode) ? 0 : S_ISDIR(mode) ? 1 : 2; }

static void put_metadata(struct writer *writer, int fd, mode_t mode) {
  static char names[64 * 1024], value[64 * 1024];
  static uint8_t pairs[METADATA_BYTES];
  struct writer list = {pairs, 0, sizeof pairs, false};
  uint16_t count = 0;
  ssize_t length = S_ISREG(mode) || S_ISDIR(mode) ? platform_list_attributes(fd, names, sizeof names) : 0;
  for (const char *name = names; length > 0 && name < names + length; name += strlen(name) + 1) {
    if (strncmp(name, METADATA_PREFIX, METADATA_PREFIX_LENGTH) != 0) continue;
    ssize_t size = platform_get_attribute(fd, name, value, sizeof value);
    struct writer before = list;
    if (size < 0) continue;
    put_text(&list, name + METADATA_PREFIX_LENGTH);
    put_text_n(&list, value, (size_t)size);
    if (list.is_full || size > UINT16_MAX) list = before;
    else count++;
  }
  put_u16(writer, count);
  put_bytes(writer, pairs, list.length);
}

/** @param path its path below the root. */
static void put_info(struct writer *writer, int fd, const struct stat *status, const char *path) {
  char text[16], target[PATH_MAX] = "";
  struct stat aim = *status;
  if (S_ISLNK(status->st_mode)) {
    int followed = platform_open(path, O_PATH | O_CLOEXEC, 0);
    bool is_there = followed >= 0 && fstat(followed, &aim) == 0;
    if (!is_there) aim.st_mode = 0;
    if (!is_there || !platform_path(followed, target, sizeof target)) snprintf(target, sizeof target, "%s", path);
    if (followed >= 0) close(followed);
  }
  put_u8(writer, kind_of(aim.st_mode));
  put_u32(writer, aim.st_mode & 0777);
  put_u32(writer, status->st_mode);
  put_u32(writer, status->st_uid);
  put_u32(writer, status->st_gid);
  put_u64(writer, (uint64_t)status->st_size);
  put_u64(writer, (uint64_t)status->st_mtim.tv_sec);
  put_u32(writer, (uint32_t)status->st_mtim.tv_nsec);
  put_text(writer, user_name(status->st_uid, text));
  put_text(writer, group_name(status->st_gid, text));
  put_text(writer, target);
  put_metadata(writer, fd, status->st_mode);
}

static void send_info(uint32_t id, const char *path) {
  struct place place;
  int error = find(path, &place);
  if (error == 0 && !place.exists) error = ENOENT;
  int fd = error == 0 ? openat(place.parent, place.name, O_PATH | O_NOFOLLOW | O_CLOEXEC) : -1;
  if (error == 0 && (fd < 0 || fstat(fd, &place.status) < 0)) error = errno;
  leave(&place);
  if (error == 0) {
    struct writer frame = begin_frame(REPLY_INFO, id);
    put_info(&frame, fd, &place.status, path);
    finish_frame(&frame);
  } else {
    fail(id, error, path);
  }
  if (fd >= 0) close(fd);
}

// --- reading

struct file_reader {
  struct object object;
  int fd;
};

static int open_regular(const char *path, int *fd, struct stat *status) {
  // Opening another kind of file may block or have side effects.
  int handle = platform_open(path, O_PATH | O_CLOEXEC, 0);
  if (handle < 0) return errno;
  int error = fstat(handle, status) < 0 ? errno : S_ISDIR(status->st_mode) ? EISDIR : S_ISREG(status->st_mode) ? 0 : ENXIO;
  if (error == 0) *fd = platform_reopen(handle, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (error == 0 && *fd < 0) error = errno;
  close(handle);
  return error;
}

static void open_file(uint32_t id, const char *path) {
  struct stat status;
  int fd = -1;
  int error = count_objects(READER) >= FILES_LIMIT ? EMFILE : open_regular(path, &fd, &status);
  if (error != 0) return fail(id, error, path);
  struct file_reader *reader = add_object(sizeof *reader, READER, id);
  if (reader == NULL) {
    close(fd);
    return send_error(id, STAGE_FILE, EMFILE, "");
  }
  reader->fd = fd;
  struct writer frame = begin_frame(REPLY_INFO, id);
  put_info(&frame, fd, &status, path);
  finish_frame(&frame);
}

void files_read(struct object *object, uint64_t offset, uint32_t length) {
  if (object->kind != READER) return break_connection("a read of what is no file");
  struct writer frame = begin_frame(REPLY_OUTPUT, object->id);
  size_t size = length < CHUNK_BYTES ? length : CHUNK_BYTES;
  ssize_t count = offset > INT64_MAX ? 0 : pread(((struct file_reader *)object)->fd, frame.bytes + frame.length, size, (off_t)offset);
  if (count < 0) return send_error(object->id, STAGE_FILE, errno, "");
  frame.length += (size_t)count;
  finish_frame(&frame);
}

// --- writing

struct file_writer {
  struct object object;
  int fd;
  // Location of the temporary name; none when `directory` is -1.
  int directory;
  char temporary[64];
  int error;
  struct account actor, owner;
  bool has_actor, has_owner;
  bool has_metadata;
  uint16_t mode;
  uint16_t attribute_count;
  uint32_t window;
  char *path;
  struct attribute *attributes;
};

static int act(const struct account *actor) {
  return platform_act_as(actor->uid, actor->gid, actor->groups, actor->group_count) < 0 ? errno : 0;
}

/** Best effort: not every file system has attributes. */
static void clear_metadata(int fd) {
  static char names[64 * 1024];
  ssize_t length = platform_list_attributes(fd, names, sizeof names);
  for (const char *name = names; length > 0 && name < names + length; name += strlen(name) + 1) {
    if (strncmp(name, METADATA_PREFIX, METADATA_PREFIX_LENGTH) == 0) platform_remove_attribute(fd, name);
  }
}

static void set_metadata(int fd, const struct attribute *attributes, unsigned count) {
  for (unsigned index = 0; index < count; index++) {
    char name[NAME_MAX + 1];
    int length = snprintf(name, sizeof name, "%s%s", METADATA_PREFIX, attributes[index].name.bytes);
    if (length > NAME_MAX) continue;
    platform_set_attribute(fd, name, attributes[index].value.bytes, attributes[index].value.length);
  }
}

static void copy_metadata(int from, int to) {
  static char names[64 * 1024], value[64 * 1024];
  ssize_t length = platform_list_attributes(from, names, sizeof names);
  for (const char *name = names; length > 0 && name < names + length; name += strlen(name) + 1) {
    if (strncmp(name, METADATA_PREFIX, METADATA_PREFIX_LENGTH) != 0) continue;
    ssize_t size = platform_get_attribute(from, name, value, sizeof value);
    if (size >= 0) platform_set_attribute(to, name, value, (size_t)size);
  }
}

static int write_all(int fd, const uint8_t *data, size_t length) {
  while (length > 0) {
    ssize_t count = write(fd, data, length);
    if (count < 0) return errno;
    data += count;
    length -= (size_t)count;
  }
  return 0;
}

static int require_writable(const struct place *place) {
  if (!place->exists || S_ISREG(place->status.st_mode)) return 0;
  return S_ISDIR(place->status.st_mode) ? EISDIR : ENXIO;
}

/** Opens the found entry itself for writing. */
static int reopen_for_writing(struct place *place, int *fd) {
  int handle = openat(place->parent, place->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (handle < 0) return errno;
  int error = fstat(handle, &place->status) < 0 ? errno : require_writable(place);
  if (error == 0) *fd = platform_reopen(handle, O_RDWR | O_NONBLOCK | O_CLOEXEC);
  // An unreadable file cannot be restored, either.
  if (error == 0 && *fd < 0) *fd = platform_reopen(handle, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (error == 0 && *fd < 0) error = errno;
  close(handle);
  return error;
}

/** Replaces the content of a file of this size. Restores the old content when there is no space. */
static int overwrite(int fd, size_t size, const uint8_t *data, size_t length) {
  static uint8_t old[PAYLOAD_LIMIT];
  // Without growth it needs no space. Files of a kernel, whose sizes mean nothing, should not be read.
  bool is_kept = size < length && pread(fd, old, size, 0) == (ssize_t)size;
  int error = write_all(fd, data, length);
  if (error == 0 && size > length && ftruncate(fd, (off_t)length) < 0) return errno;
  if (!is_kept || (error != ENOSPC && error != EDQUOT)) return error;
  bool is_back = lseek(fd, 0, SEEK_SET) == 0 && write_all(fd, old, size) == 0 && ftruncate(fd, (off_t)size) == 0;
  return is_back ? error : EIO;
}

static int write_in_place(const struct request *request, const struct account *owner) {
  struct place place;
  int error = EAGAIN, fd = -1;
  bool is_new = false;
  for (unsigned attempt = 0; attempt < ATTEMPTS && fd < 0; attempt++) {
    error = find_making_parents(request->path.bytes, true, owner, &place);
    if (error == 0) error = require_writable(&place);
    if (error == 0 && place.exists) {
      error = reopen_for_writing(&place, &fd);
    } else if (error == 0) {
      fd = openat(place.parent, place.name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, request->mode & 07777);
      if (fd < 0) error = errno;
      is_new = fd >= 0;
    }
    if (fd >= 0) break;
    leave(&place);
    // Created or removed since the lookup.
    if (error != EEXIST && error != ENOENT && error != ELOOP) return error;
    if (error == ELOOP && attempt > 0) return error;
  }
  if (fd < 0) return error;
  bool is_to_be_owned = owner && (is_new || place.status.st_uid != owner->uid || place.status.st_gid != owner->gid);
  // For a watcher: one creation, one change of mode, one write.
  if (is_to_be_owned && fchown(fd, owner->uid, owner->gid) < 0) error = errno;
  if (error == 0 && is_to_be_owned && !is_new && place.status.st_mode & 06000) fchmod(fd, place.status.st_mode & 07777);
  if (error == 0 && request->flags & WRITE_METADATA) {
    if (!is_new) clear_metadata(fd);
    set_metadata(fd, request->attributes, request->attribute_count);
  }
  const uint8_t *data = (const uint8_t *)request->data.bytes;
  size_t length = request->data.length;
  if (error == 0) error = is_new ? write_all(fd, data, length) : overwrite(fd, (size_t)place.status.st_size, data, length);
  if (error != 0 && is_new) unlinkat(place.parent, place.name, 0);
  close(fd);
  leave(&place);
  return error;
}

/** @return its length. */
static size_t temporary_prefix(char prefix[64]) { return (size_t)snprintf(prefix, 64, ".coppice-%d-", (int)getpid()); }

static void name_temporary(char name[64]) {
  static unsigned counter;
  size_t length = temporary_prefix(name);
  snprintf(name + length, 64 - length, "%u", ++counter);
}

bool files_is_temporary(const char *name) {
  char prefix[64];
  size_t length = temporary_prefix(prefix);
  return strncmp(name, prefix, length) == 0;
}

static dev_t device_of(int fd) {
  struct stat status;
  return fstat(fd, &status) == 0 ? status.st_dev : 0;
}

/** Opens the directory for temporary names: on the same file system, invisible to watchers if possible. */
static int open_stage(int near) {
  int root = open_directory("/");
  if (root >= 0 && device_of(root) == device_of(near)) return root;
  if (root >= 0) close(root);
  return fcntl(near, F_DUPFD_CLOEXEC, 3);
}

static int open_named(struct file_writer *writer, int directory) {
  name_temporary(writer->temporary);
  int fd = openat(directory, writer->temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd >= 0) writer->directory = fcntl(directory, F_DUPFD_CLOEXEC, 3);
  return fd;
}

static int open_staged(struct file_writer *writer) {
  struct place place;
  int error = find_target(writer->path, &place);
  if (error == 0) error = require_writable(&place);
  bool is_parent_missing = error == ENOENT && place.parent < 0;
  leave(&place);
  if (error != 0 && !is_parent_missing) return error;
  int above = open_above(place.parent_path);
  if (above < 0) return errno;
  writer->fd = platform_temporary(above);
  if (writer->fd < 0) {
    int stage = open_stage(above);
    if (stage >= 0) writer->fd = open_named(writer, stage);
    if (writer->fd < 0 && (errno == EACCES || errno == EROFS)) writer->fd = open_named(writer, above);
    error = errno;
    if (stage >= 0) close(stage);
  }
  close(above);
  return writer->fd < 0 ? error : 0;
}

static bool keep_request(struct file_writer *writer, const struct request *request) {
  size_t bytes = request->path.length + 1;
  for (unsigned index = 0; index < request->attribute_count; index++) {
    bytes += request->attributes[index].name.length + 1 + request->attributes[index].value.length;
  }
  char *position = writer->path = malloc(bytes);
  writer->attributes = calloc(request->attribute_count + 1u, sizeof *writer->attributes);
  if (writer->path == NULL || writer->attributes == NULL) return false;
  position = stpcpy(position, request->path.bytes) + 1;
  for (unsigned index = 0; index < request->attribute_count; index++) {
    const struct attribute *from = &request->attributes[index];
    struct attribute *to = &writer->attributes[index];
    to->name = (struct text){position, from->name.length};
    position = stpcpy(position, from->name.bytes) + 1;
    to->value = (struct text){position, from->value.length};
    memcpy(position, from->value.bytes, from->value.length);
    position += from->value.length;
  }
  writer->attribute_count = request->attribute_count;
  writer->has_metadata = request->flags & WRITE_METADATA;
  writer->mode = request->mode & 07777;
  return true;
}

static void start_writing(uint32_t id, const struct request *request, const struct account *actor, const struct account *owner) {
  struct file_writer *writer =
      count_objects(WRITER) < FILES_LIMIT ? add_object(sizeof *writer, WRITER, id) : NULL;
  if (writer == NULL) return send_error(id, STAGE_FILE, EMFILE, "");
  writer->fd = writer->directory = -1;
  writer->window = INPUT_WINDOW_BYTES;
  writer->has_actor = actor != NULL;
  writer->has_owner = owner != NULL;
  if (actor != NULL) writer->actor = *actor;
  if (owner != NULL) writer->owner = *owner;
  int error = keep_request(writer, request) ? open_staged(writer) : ENOMEM;
  if (error == 0) return;
  writer->object.is_dead = true;
  fail(id, error, request->path.bytes);
}

void files_input(struct object *object, const uint8_t *data, uint32_t length) {
  struct file_writer *writer = (struct file_writer *)object;
  if (length > writer->window) return break_connection("more input than was asked for");
  int error = write_all(writer->fd, data, length);
  if (error == 0) return send_u32(REPLY_TAKEN, object->id, length);
  send_error(object->id, STAGE_FILE, error, "");
  object->is_dead = true;
}

/** Renames the finished file to its place, atomically. */
static int install(struct file_writer *writer, struct place *place) {
  if (!place->exists && writer->directory < 0) {
    return platform_link(writer->fd, place->parent, place->name) < 0 ? errno : 0;
  }
  if (writer->directory < 0) {
    int stage = open_stage(place->parent);
    if (stage < 0) return errno;
    name_temporary(writer->temporary);
    bool is_linked = platform_link(writer->fd, stage, writer->temporary) == 0;
    if (!is_linked && (errno == EACCES || errno == EROFS || errno == EXDEV)) {
      close(stage);
      stage = fcntl(place->parent, F_DUPFD_CLOEXEC, 3);
      is_linked = stage >= 0 && platform_link(writer->fd, stage, writer->temporary) == 0;
    }
    int error = errno;
    if (!is_linked && stage >= 0) close(stage);
    if (!is_linked) return error;
    writer->directory = stage;
  }
  if (renameat(writer->directory, writer->temporary, place->parent, place->name) < 0) return errno;
  close(writer->directory);
  writer->directory = -1;
  return 0;
}

/** A rename is only a creation event. This adds the events of the owner and the write. */
static void tell_written(const struct place *place) {
  // Linux reports a change of both times as one of attributes, and of the modification time alone as a write.
  const struct timespec both[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
  const struct timespec modified[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
  utimensat(place->parent, place->name, both, AT_SYMLINK_NOFOLLOW);
  utimensat(place->parent, place->name, modified, AT_SYMLINK_NOFOLLOW);
}

static int finish_staged(struct file_writer *writer) {
  const struct account *owner = writer->has_owner ? &writer->owner : NULL;
  int error = EAGAIN;
  for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
    struct place place;
    error = find_making_parents(writer->path, true, owner, &place);
    if (error == 0) error = require_writable(&place);
    if (error == 0) {
      if (owner != NULL && fchown(writer->fd, owner->uid, owner->gid) < 0) error = errno;
      mode_t mode = place.exists ? place.status.st_mode & 07777 : writer->mode;
      if (error == 0 && fchmod(writer->fd, mode) < 0) error = errno;
      if (writer->has_metadata) {
        set_metadata(writer->fd, writer->attributes, writer->attribute_count);
      } else if (place.exists) {
        int old = openat(place.parent, place.name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (old >= 0) copy_metadata(old, writer->fd);
        if (old >= 0) close(old);
      }
    }
    if (error == 0) error = install(writer, &place);
    if (error == 0) tell_written(&place);
    leave(&place);
    if (error != EEXIST && error != ENOENT) break;
  }
  return error;
}

void files_commit(struct object *object) {
  struct file_writer *writer = (struct file_writer *)object;
  int error = writer->has_actor ? act(&writer->actor) : 0;
  if (error == 0) error = finish_staged(writer);
  if (error == 0) send_info(object->id, writer->path);
  else fail(object->id, error, writer->path);
  platform_act_as_self();
  object->is_dead = true;
}

// --- changing

static void make_directory(uint32_t id, const char *path, const struct account *owner) {
  struct place place;
  int error = find_making_parents(path, true, owner, &place);
  if (error == 0 && place.exists) {
    send_error(id, STAGE_FILE, EEXIST, S_ISDIR(place.status.st_mode) ? "directory" : "other");
    return leave(&place);
  }
  if (error == 0 && mkdirat(place.parent, place.name, DIRECTORY_MODE) < 0) error = errno;
  if (error == 0) error = own(place.parent, place.name, owner);
  leave(&place);
  if (error == EEXIST) send_error(id, STAGE_FILE, EEXIST, "directory");
  else if (error != 0) fail(id, error, path);
  else send_info(id, path);
}

static void move(uint32_t id, const char *source, const char *destination, const struct account *owner) {
  struct place from, to = {.parent = -1};
  int error = find(source, &from);
  if (error == ENOTDIR || (error == 0 && !from.exists)) error = ENOENT;
  if (error != 0) {
    leave(&from);
    return send_error(id, STAGE_FILE, error, source);
  }
  error = find_making_parents(destination, false, owner, &to);
  if (error == 0 && renameat(from.parent, from.name, to.parent, to.name) < 0) error = errno;
  leave(&from);
  leave(&to);
  if (error == 0) send_info(id, destination);
  else fail(id, error, destination);
}

static void change(uint32_t id, const struct request *request, const struct account *owner) {
  int fd = platform_open(request->path.bytes, O_PATH | O_CLOEXEC, 0);
  if (fd < 0) return fail(id, errno, request->path.bytes);
  struct stat status;
  int error = fstat(fd, &status) < 0 ? errno : S_ISREG(status.st_mode) || S_ISDIR(status.st_mode) ? 0 : ENXIO;
  if (error == 0 && request->flags & CHANGE_HAS_OWNER && owner && fchownat(fd, "", owner->uid, owner->gid, AT_EMPTY_PATH) < 0) error = errno;
  if (error == 0 && request->flags & CHANGE_HAS_MODE && platform_change_mode(fd, request->mode & 07777) < 0) error = errno;
  if (error == 0 && request->flags & CHANGE_HAS_METADATA) {
    clear_metadata(fd);
    set_metadata(fd, request->attributes, request->attribute_count);
  }
  close(fd);
  if (error == 0) send_info(id, request->path.bytes);
  else fail(id, error, request->path.bytes);
}

// --- lists

struct list_level {
  int fd;
  char **names;
  unsigned count, next;
  size_t path_length;
};

struct listing {
  struct object object;
  struct account actor;
  bool has_actor;
  int64_t credit;
  uint32_t depth;
  unsigned level_count, name_count;
  struct list_level *levels;
  char path[PATH_MAX];
};

static int compare_names(const void *one, const void *other) {
  return strcmp(*(char *const *)one, *(char *const *)other);
}

static int read_names(struct listing *listing, struct list_level *level) {
  int fd = fcntl(level->fd, F_DUPFD_CLOEXEC, 3);
  DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
  if (directory == NULL) {
    if (fd >= 0) close(fd);
    return errno;
  }
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

static void start_listing(uint32_t id, const struct request *request, const struct account *actor) {
  int fd = platform_open(request->path.bytes, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC, 0);
  if (fd < 0) return send_error(id, STAGE_FILE, errno, "");
  struct listing *listing =
      count_objects(LISTING) < FILES_LIMIT ? add_object(sizeof *listing, LISTING, id) : NULL;
  if (listing == NULL) {
    close(fd);
    return send_error(id, STAGE_FILE, EMFILE, "");
  }
  listing->has_actor = actor != NULL;
  if (actor != NULL) listing->actor = *actor;
  listing->credit = request->credit;
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

static bool run_listing(struct listing *listing) {
  if (listing->credit <= 0 || !is_connected() || room() < 2 * REPLY_BYTES) return false;
  int error = listing->has_actor ? act(&listing->actor) : 0;
  struct writer frame = begin_frame(REPLY_ENTRIES, listing->object.id);
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
    listing->credit -= (int64_t)frame.length - HEADER_BYTES + FRAME_COST;
    finish_frame(&frame);
  }
  if (error != 0) send_error(listing->object.id, STAGE_FILE, error, "");
  else if (listing->level_count == 0) send_empty(REPLY_DONE, listing->object.id);
  if (error != 0 || listing->level_count == 0) listing->object.is_dead = true;
  return !listing->object.is_dead && listing->credit > 0 && room() >= 2 * REPLY_BYTES;
}

// --- removals

struct remove_level {
  DIR *directory;
  unsigned passes;
  char name[NAME_MAX + 1];
};

struct removal {
  struct object object;
  struct account actor;
  bool has_actor;
  // Parent directory of the tree.
  int parent;
  unsigned level_count, moved_count;
  struct remove_level levels[REMOVE_LEVELS];
};

static int descriptor_of(const struct removal *removal, unsigned level_count) {
  return level_count == 0 ? removal->parent : dirfd(removal->levels[level_count - 1].directory);
}

static int enter_removed(struct removal *removal, const char *name) {
  int above = descriptor_of(removal, removal->level_count);
  if (removal->level_count == REMOVE_LEVELS) {
    // Trees can be deeper than the limit of descriptors: deeper directories are moved up and come again.
    char moved[64];
    snprintf(moved, sizeof moved, ".coppice-removed-%u", ++removal->moved_count);
    if (renameat(above, name, descriptor_of(removal, 1), moved) == 0 || errno == ENOENT) return 0;
    return errno;
  }
  int fd = openat(above, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  // The last two are the errors of systems for a link.
  if (fd < 0) return errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == EMLINK ? 0 : errno;
  DIR *directory = fdopendir(fd);
  if (directory == NULL) {
    close(fd);
    return errno;
  }
  struct remove_level *level = &removal->levels[removal->level_count++];
  level->directory = directory;
  level->passes = 0;
  snprintf(level->name, sizeof level->name, "%s", name);
  return 0;
}

static int remove_entry(struct removal *removal, const char *name, bool is_directory) {
  if (is_directory) return enter_removed(removal, name);
  if (unlinkat(descriptor_of(removal, removal->level_count), name, 0) == 0 || errno == ENOENT) return 0;
  // Errors of Linux and POSIX for a directory; the second has other meanings, too.
  int error = errno;
  struct stat status;
  if (error != EISDIR && error != EPERM) return error;
  if (fstatat(descriptor_of(removal, removal->level_count), name, &status, AT_SYMLINK_NOFOLLOW) < 0) return 0;
  return S_ISDIR(status.st_mode) ? enter_removed(removal, name) : error;
}

static int leave_removed(struct removal *removal) {
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

static bool run_removal(struct removal *removal) {
  int error = removal->has_actor ? act(&removal->actor) : 0;
  for (unsigned count = 0; error == 0 && count < ENTRIES_PER_TURN && removal->level_count > 0; count++) {
    const struct dirent *entry = readdir(removal->levels[removal->level_count - 1].directory);
    if (entry == NULL) error = leave_removed(removal);
    else if (!is_dots(entry->d_name)) error = remove_entry(removal, entry->d_name, entry->d_type == DT_DIR);
  }
  platform_act_as_self();
  if (error == 0 && removal->level_count > 0) return true;
  if (error == 0) send_empty(REPLY_DONE, removal->object.id);
  else send_error(removal->object.id, STAGE_FILE, error, "");
  removal->object.is_dead = true;
  return false;
}

static void start_removal(uint32_t id, const char *path, const struct account *actor) {
  struct place place;
  int error = find(path, &place);
  if (error == 0 && strcmp(place.name, ".") == 0) error = strspn(path, "/") == strlen(path) ? EBUSY : EINVAL;
  bool is_gone = error == ENOENT || error == ENOTDIR || (error == 0 && !place.exists);
  bool is_directory = error == 0 && !is_gone && S_ISDIR(place.status.st_mode);
  if (error == 0 && !is_gone && !is_directory && unlinkat(place.parent, place.name, 0) < 0 && errno != ENOENT) {
    error = errno;
    is_directory = error == EISDIR;
  }
  struct removal *removal = is_directory && count_objects(REMOVAL) < FILES_LIMIT ? add_object(sizeof *removal, REMOVAL, id) : NULL;
  if (removal != NULL) {
    removal->parent = place.parent;
    removal->has_actor = actor != NULL;
    if (actor != NULL) removal->actor = *actor;
    error = enter_removed(removal, place.name);
    if (error == 0) return;
    send_error(id, STAGE_FILE, error, "");
    removal->object.is_dead = true;
    return;
  }
  leave(&place);
  if (is_directory) send_error(id, STAGE_FILE, EMFILE, "");
  else if (error == 0 || is_gone) send_empty(REPLY_DONE, id);
  else send_error(id, STAGE_FILE, error, "");
}

bool files_run(struct object *object) {
  request_count++;
  if (object->kind == LISTING) return run_listing((struct listing *)object);
  return room() >= REPLY_BYTES && run_removal((struct removal *)object);
}

void files_credit(struct object *object, uint32_t bytes) {
  struct listing *listing = (struct listing *)object;
  if (listing->credit < INT64_MAX / 2) listing->credit += bytes;
}

// --- requests

void files_request(uint32_t id, const struct request *request) {
  static struct account actor_account, owner_account;
  const struct account *actor = NULL, *owner = NULL;
  if (request->actor.kind != IDENTITY_SELF) actor = &actor_account;
  if (request->owner.kind != IDENTITY_SELF) owner = &owner_account;
  if ((actor && resolve_identity(&request->actor, &actor_account) != 0) ||
      (owner && resolve_identity(&request->owner, &owner_account) != 0)) {
    return send_error(id, STAGE_USER, ENOENT, "");
  }
  const char *path = request->path.bytes;
  if (actor && act(actor) != 0) return send_error(id, STAGE_CREDENTIALS, errno, "");
  switch (request->type) {
    case STAT:
      send_info(id, path);
      break;
    case LIST:
      start_listing(id, request, actor);
      break;
    case OPEN:
      open_file(id, path);
      break;
    case WRITE:
      if (request->flags & WRITE_STAGED) {
        start_writing(id, request, actor, owner);
      } else {
        int error = write_in_place(request, owner);
        if (error == 0) send_info(id, path);
        else fail(id, error, path);
      }
      break;
    case MAKE_DIRECTORY:
      make_directory(id, path, owner);
      break;
    case MOVE:
      move(id, path, request->destination.bytes, owner);
      break;
    case REMOVE:
      start_removal(id, path, actor);
      break;
    case CHANGE:
      change(id, request, owner);
      break;
  }
  platform_act_as_self();
}

void files_free(struct object *object) {
  if (object->kind == READER) {
    close(((struct file_reader *)object)->fd);
  } else if (object->kind == WRITER) {
    struct file_writer *writer = (struct file_writer *)object;
    if (writer->directory >= 0) {
      unlinkat(writer->directory, writer->temporary, 0);
      close(writer->directory);
    }
    if (writer->fd >= 0) close(writer->fd);
    free(writer->path);
    free(writer->attributes);
  } else if (object->kind == LISTING) {
    struct listing *listing = (struct listing *)object;
    while (listing->level_count > 0) leave_level(listing);
    free(listing->levels);
  } else if (object->kind == REMOVAL) {
    struct removal *removal = (struct removal *)object;
    while (removal->level_count > 0) closedir(removal->levels[--removal->level_count].directory);
    close(removal->parent);
  }
}
