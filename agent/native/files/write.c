// Writes. Small ones are done at once, in place. Large ones are staged in parts and end with a rename.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../aside.h"
#include "../platform.h"
#include "files.h"

enum { ROLE_OFFER, ROLE_INPUT };
// Freeing such a file takes longer than handing it over.
enum { LARGE_BYTES = 4 * 1024 * 1024 };

struct file_writer {
  struct object object;
  int fd;
  // Location of the temporary name; none when `directory` is -1.
  int directory;
  char temporary[64];
  // Two connected sockets, the second for the server, which sends `input` by it; -1 without them.
  int offer[2];
  // A socket that the server writes to in place of sending frames; -1 without one.
  int input;
  int error;
  struct account actor, owner;
  bool has_metadata;
  uint16_t mode;
  uint16_t attribute_count;
  char *path;
  struct attribute *attributes;
};

void clear_metadata(int fd) {
  static char names[64 * 1024];
  ssize_t length = platform_list_attributes(fd, names, sizeof names);
  for (const char *name = names; length > 0 && name < names + length; name += strlen(name) + 1) {
    if (strncmp(name, METADATA_PREFIX, METADATA_PREFIX_LENGTH) == 0) platform_remove_attribute(fd, name);
  }
}

void set_metadata(int fd, const struct attribute *attributes, unsigned count) {
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
  // Read only when the file grows: other writes need no space, and the special files of a kernel (/proc, /sys) should
  // not be read.
  bool is_kept = size < length && pread(fd, old, size, 0) == (ssize_t)size;
  int error = write_all(fd, data, length);
  if (error == 0 && size > length && ftruncate(fd, (off_t)length) < 0) return errno;
  if (!is_kept || (error != ENOSPC && error != EDQUOT)) return error;
  bool is_back = lseek(fd, 0, SEEK_SET) == 0 && write_all(fd, old, size) == 0 && ftruncate(fd, (off_t)size) == 0;
  return is_back ? error : EIO;
}

/** Describes the file that was written, which has the name of the request itself: another look would take as long. */
static void send_written(uint32_t id, int fd, const char *path) {
  struct stat status;
  if (fstat(fd, &status) < 0) return send_info(id, errno, path);
  struct writer frame = begin_frame(REPLY_INFO, id);
  put_info(&frame, fd, &status, path);
  finish_frame(&frame);
}

void write_in_place(uint32_t id, const struct request *request, const struct account *owner) {
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
    close_place(&place);
    // Created or removed since the lookup.
    if (error != EEXIST && error != ENOENT && error != ELOOP) break;
    if (error == ELOOP && attempt > 0) break;
  }
  if (fd < 0) return send_info(id, error, request->path.bytes);
  bool is_to_be_owned = !owner->is_self && (is_new || place.status.st_uid != owner->uid || place.status.st_gid != owner->gid);
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
  // No disk has failed: it is a process's memory, for example, without a page there.
  if (error == EIO && platform_is_of_processes(fd) > 0) error = ENXIO;
  if (error != 0 && is_new) unlinkat(place.parent, place.name, 0);
  if (error == 0 && !place.is_behind_link) send_written(id, fd, request->path.bytes);
  else send_info(id, error, request->path.bytes);
  close(fd);
  close_place(&place);
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
  close_place(&place);
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

void start_writing(uint32_t id, const struct request *request, const struct account *actor, const struct account *owner) {
  struct file_writer *writer = add_object(sizeof *writer, &writer_kind, id);
  if (writer == NULL) return send_error(id, STAGE_FILE, EMFILE, "");
  writer->fd = writer->directory = writer->offer[0] = writer->offer[1] = writer->input = -1;
  writer->actor = *actor;
  writer->owner = *owner;
  int error = keep_request(writer, request) ? open_staged(writer) : ENOMEM;
  if (error == 0) return;
  writer->object.is_dead = true;
  fail_file(id, error, request->path.bytes);
}

static void writer_input(struct object *object, const uint8_t *data, uint32_t length) {
  struct file_writer *writer = (struct file_writer *)object;
  if (length > INPUT_WINDOW_BYTES) return break_connection("more input than was asked for");
  int error = write_all(writer->fd, data, length);
  if (error == 0) return send_u32(REPLY_TAKEN, object->id, length);
  send_error(object->id, STAGE_FILE, error, "");
  object->is_dead = true;
}

static int writer_share(struct object *object) {
  struct file_writer *writer = (struct file_writer *)object;
  if (writer->offer[1] >= 0) return -1;
  int error = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, writer->offer);
  return error < 0 ? -1 : writer->offer[1];
}

/** Takes over the socket that the server has sent. @return false without one. */
static bool take_input(struct file_writer *writer) {
  uint8_t byte;
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr aligned;
  } control;
  struct iovec part = {&byte, sizeof byte};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
  if (writer->offer[0] < 0 || recvmsg(writer->offer[0], &message, MSG_CMSG_CLOEXEC) <= 0) return false;
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (header == NULL || header->cmsg_type != SCM_RIGHTS) return false;
  memcpy(&writer->input, CMSG_DATA(header), sizeof writer->input);
  return true;
}

/** Moves bytes that the server has written into the file. @return false without any. */
static bool move_input(struct file_writer *writer) {
  static uint8_t bytes[PAYLOAD_LIMIT];
  if (writer->input < 0 && !take_input(writer)) return false;
  ssize_t count = read(writer->input, bytes, sizeof bytes);
  if (count > 0 && writer->error == 0) writer->error = write_all(writer->fd, bytes, (size_t)count);
  return count > 0;
}

static void writer_prepare(struct object *object) {
  struct file_writer *writer = (struct file_writer *)object;
  if (writer->error != 0) return;
  if (writer->input >= 0) watch_descriptor(writer->input, POLLIN, object, ROLE_INPUT);
  else if (writer->offer[0] >= 0) watch_descriptor(writer->offer[0], POLLIN, object, ROLE_OFFER);
}

static void writer_ready(struct object *object, int role, short events) {
  (void)role, (void)events;
  move_input((struct file_writer *)object);
}

static bool writer_pump(struct object *object) {
  struct file_writer *writer = (struct file_writer *)object;
  if (writer->error == 0 || room() < REPLY_BYTES) return false;
  send_error(object->id, STAGE_FILE, writer->error, "");
  object->is_dead = true;
  return false;
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
  bool was_large = place->exists && S_ISREG(place->status.st_mode) && place->status.st_size >= LARGE_BYTES;
  int replaced = was_large ? openat(place->parent, place->name, O_PATH | O_NOFOLLOW | O_CLOEXEC) : -1;
  int error = renameat(writer->directory, writer->temporary, place->parent, place->name) < 0 ? errno : 0;
  // It is freed with its last descriptor.
  if (replaced >= 0) aside_close(replaced);
  if (error != 0) return error;
  close(writer->directory);
  writer->directory = -1;
  return 0;
}

/** Adds the CHMOD and WRITE events of a written file: a watch reports the rename of a staged file as CREATE alone. */
static void send_write_events(const struct place *place) {
  // Linux reports a change of both times as one of attributes, and of the modification time alone as a write.
  const struct timespec both[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
  const struct timespec modified[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
  utimensat(place->parent, place->name, both, AT_SYMLINK_NOFOLLOW);
  utimensat(place->parent, place->name, modified, AT_SYMLINK_NOFOLLOW);
}

static int finish_staged(struct file_writer *writer) {
  const struct account *owner = &writer->owner;
  int error = EAGAIN;
  for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
    struct place place;
    error = find_making_parents(writer->path, true, owner, &place);
    if (error == 0) error = require_writable(&place);
    if (error == 0) {
      if (!owner->is_self && fchown(writer->fd, owner->uid, owner->gid) < 0) error = errno;
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
    if (error == 0) send_write_events(&place);
    close_place(&place);
    if (error != EEXIST && error != ENOENT) break;
  }
  return error;
}

static void writer_commit(struct object *object) {
  struct file_writer *writer = (struct file_writer *)object;
  while (move_input(writer)) continue;
  int error = writer->error;
  if (error == 0) error = act(&writer->actor);
  if (error == 0) error = finish_staged(writer);
  send_info(object->id, error, writer->path);
  platform_act_as_self();
  object->is_dead = true;
}

static void writer_free(struct object *object) {
  struct file_writer *writer = (struct file_writer *)object;
  if (writer->directory >= 0) {
    unlinkat(writer->directory, writer->temporary, 0);
    close(writer->directory);
  }
  if (writer->fd >= 0) close(writer->fd);
  for (unsigned end = 0; end < 2; end++) {
    if (writer->offer[end] >= 0) close(writer->offer[end]);
  }
  if (writer->input >= 0) close(writer->input);
  free(writer->path);
  free(writer->attributes);
}

const struct kind writer_kind = {
    FILES_LIMIT,           .free = writer_free,       .input = writer_input, .end_input = writer_commit,
    .pump = writer_pump,   .prepare = writer_prepare, .ready = writer_ready, .share = writer_share,
};
