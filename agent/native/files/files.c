// Files. A request gets one answer at once, except for lists, removals and large writes, which are done in parts.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../platform.h"
#include "files.h"

enum { METADATA_BYTES = 32 * 1024 };

// --- descriptions

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

void put_info(struct writer *writer, int fd, const struct stat *status, const char *path) {
  char text[16], target[PATH_MAX] = "";
  struct stat aim = *status;
  if (S_ISLNK(status->st_mode)) {
    int followed = platform_open(path, O_PATH | O_CLOEXEC, 0);
    bool is_there = followed >= 0 && fstat(followed, &aim) == 0;
    if (!is_there) aim.st_mode = 0;
    if (!is_there || !path_below_root(followed, target, sizeof target)) snprintf(target, sizeof target, "%s", path);
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

void send_info(uint32_t id, int error, const char *path) {
  struct place place = {.parent = -1};
  if (error == 0) error = find_place(path, &place);
  if (error == 0 && !place.exists) error = ENOENT;
  int fd = error == 0 ? openat(place.parent, place.name, O_PATH | O_NOFOLLOW | O_CLOEXEC) : -1;
  if (error == 0 && (fd < 0 || fstat(fd, &place.status) < 0)) error = errno;
  close_place(&place);
  if (error == 0) {
    struct writer frame = begin_frame(REPLY_INFO, id);
    put_info(&frame, fd, &place.status, path);
    finish_frame(&frame);
  } else {
    fail_file(id, error, path);
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
  int error = open_regular(path, &fd, &status);
  if (error != 0) return fail_file(id, error, path);
  struct file_reader *reader = add_object(sizeof *reader, &reader_kind, id);
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
  if (object->kind != &reader_kind) return break_connection("a read of an object that is no file");
  struct writer frame = begin_frame(REPLY_OUTPUT, object->id);
  size_t size = length < CHUNK_BYTES ? length : CHUNK_BYTES;
  ssize_t count = offset > INT64_MAX ? 0 : pread(((struct file_reader *)object)->fd, frame.bytes + frame.length, size, (off_t)offset);
  if (count < 0) return send_error(object->id, STAGE_FILE, errno, "");
  frame.length += (size_t)count;
  finish_frame(&frame);
}

static int reader_share(struct object *object) {
  int fd = ((struct file_reader *)object)->fd;
  // A read of such a file may wait for a server without end, and the host's threads with it.
  return platform_is_network(fd) == 0 ? fd : -1;
}

static void reader_free(struct object *object) { close(((struct file_reader *)object)->fd); }

const struct kind reader_kind = {FILES_LIMIT, .free = reader_free, .share = reader_share};

// --- changing

static void make_directory(uint32_t id, const char *path, const struct account *owner) {
  struct place place;
  int error = find_making_parents(path, true, owner, &place);
  if (error == 0 && place.exists) {
    send_error(id, STAGE_FILE, EEXIST, S_ISDIR(place.status.st_mode) ? "directory" : "other");
    return close_place(&place);
  }
  if (error == 0 && mkdirat(place.parent, place.name, DIRECTORY_MODE) < 0) error = errno;
  if (error == 0) error = set_owner(place.parent, place.name, owner);
  close_place(&place);
  if (error == EEXIST) send_error(id, STAGE_FILE, EEXIST, "directory");
  else send_info(id, error, path);
}

static void move(uint32_t id, const char *source, const char *destination, const struct account *owner) {
  struct place from, to = {.parent = -1};
  int error = find_place(source, &from);
  if (error == ENOTDIR || (error == 0 && !from.exists)) error = ENOENT;
  if (error != 0) {
    close_place(&from);
    return send_error(id, STAGE_FILE, error, source);
  }
  error = find_making_parents(destination, false, owner, &to);
  if (error == 0 && renameat(from.parent, from.name, to.parent, to.name) < 0) error = errno;
  close_place(&from);
  close_place(&to);
  send_info(id, error, destination);
}

static void change(uint32_t id, const struct request *request, const struct account *owner) {
  int fd = platform_open(request->path.bytes, O_PATH | O_CLOEXEC, 0);
  if (fd < 0) return fail_file(id, errno, request->path.bytes);
  struct stat status;
  int error = fstat(fd, &status) < 0 ? errno : S_ISREG(status.st_mode) || S_ISDIR(status.st_mode) ? 0 : ENXIO;
  if (error == 0 && request->flags & CHANGE_HAS_OWNER && !owner->is_self && fchownat(fd, "", owner->uid, owner->gid, AT_EMPTY_PATH) < 0) error = errno;
  if (error == 0 && request->flags & CHANGE_HAS_MODE && platform_change_mode(fd, request->mode & 07777) < 0) error = errno;
  if (error == 0 && request->flags & CHANGE_HAS_METADATA) {
    clear_metadata(fd);
    set_metadata(fd, request->attributes, request->attribute_count);
  }
  close(fd);
  send_info(id, error, request->path.bytes);
}

// --- requests

int act(const struct account *actor) {
  if (actor->is_self) return 0;
  return platform_act_as(actor->uid, actor->gid, actor->groups, actor->group_count) < 0 ? errno : 0;
}

/** As `resolve_identity`, without a look at the accounts for the agent's own. */
static int resolve_actor(const struct identity *identity, struct account *account) {
  if (identity->kind != IDENTITY_SELF) return resolve_identity(identity, account);
  account->is_self = true;
  return 0;
}

void files_request(uint32_t id, const struct request *request) {
  static struct account actor, owner;
  const char *path = request->path.bytes;
  if (resolve_actor(&request->actor, &actor) != 0 || resolve_actor(&request->owner, &owner) != 0) {
    return send_error(id, STAGE_USER, ENOENT, "");
  }
  if (act(&actor) != 0) return send_error(id, STAGE_CREDENTIALS, errno, "");
  switch (request->type) {
    case STAT:
      send_info(id, 0, path);
      break;
    case LIST:
      start_listing(id, request, &actor);
      break;
    case OPEN:
      open_file(id, path);
      break;
    case WRITE:
      if (request->flags & WRITE_STAGED) start_writing(id, request, &actor, &owner);
      else write_in_place(id, request, &owner);
      break;
    case MAKE_DIRECTORY:
      make_directory(id, path, &owner);
      break;
    case MOVE:
      move(id, path, request->destination.bytes, &owner);
      break;
    case REMOVE:
      start_removal(id, path, &actor);
      break;
    case CHANGE:
      change(id, request, &owner);
      break;
    case WATCH:
      start_watch(id, request);
      break;
  }
  platform_act_as_self();
}
