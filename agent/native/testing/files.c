// See fcntl.h and sys/extattr.h.
#define COPPICE_TESTING_FILES
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/extattr.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { NAME_BYTES = 256, LIST_BYTES = 64 * 1024 };

static const char *link_to(int fd) {
  static char link[32];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  return link;
}

static int open_beneath(int directory, const char *path, int flags, mode_t mode) {
  struct open_how how = {
      .flags = (uint64_t)(unsigned)flags,
      .mode = flags & O_CREAT ? mode : 0,
      .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
  };
  int fd = (int)syscall(SYS_openat2, directory, path, &how, sizeof how);
  if (fd < 0 && (errno == EXDEV || errno == EAGAIN)) errno = ENOTCAPABLE;
  return fd;
}

static bool is_link(int directory, const char *path) {
  struct stat status;
  return fstatat(directory, path, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode);
}

int freebsd_openat(int directory, const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  int plain = flags & ~(O_EMPTY_PATH | O_RESOLVE_BENEATH);
  if (flags & O_EMPTY_PATH && path[0] == 0) return open(link_to(directory), plain);
  int fd = flags & O_RESOLVE_BENEATH ? open_beneath(directory, path, plain, mode) : openat(directory, path, plain, mode);
  int error = errno;
  // FreeBSD has another error for links that are not followed.
  bool is_about_links = fd < 0 && flags & O_NOFOLLOW && !(flags & O_PATH) && (error == ELOOP || error == ENOTDIR);
  errno = is_about_links && is_link(directory, path) ? EMLINK : error;
  return fd;
}

int freebsd_fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  int result;
  if (command == F_KINFO) {
    struct kinfo_file *info = va_arg(arguments, struct kinfo_file *);
    ssize_t length = readlink(link_to(fd), info->kf_path, sizeof info->kf_path - 1);
    if (length >= 0) info->kf_path[length] = 0;
    result = length < 0 ? -1 : 0;
  } else {
    result = fcntl(fd, command, va_arg(arguments, int));
  }
  va_end(arguments);
  return result;
}

int freebsd_fchmodat(int directory, const char *path, mode_t mode, int flags) {
  return flags & AT_EMPTY_PATH && path[0] == 0 ? chmod(link_to(directory), mode) : fchmodat(directory, path, mode, flags);
}

static const char *full_name(const char *name) {
  static char full[NAME_BYTES];
  snprintf(full, sizeof full, "user.%s", name);
  return full;
}

ssize_t extattr_list_fd(int fd, int space, void *names, size_t size) {
  static char list[LIST_BYTES];
  ssize_t length = flistxattr(fd, list, sizeof list);
  size_t written = 0;
  (void)space;
  for (const char *name = list; length > 0 && name < list + length; name += strlen(name) + 1) {
    size_t name_length = strlen(name) - strlen("user.");
    if (strncmp(name, "user.", strlen("user.")) != 0 || written + 1 + name_length > size) continue;
    ((unsigned char *)names)[written] = (unsigned char)name_length;
    memcpy((char *)names + written + 1, name + strlen("user."), name_length);
    written += 1 + name_length;
  }
  return length < 0 ? -1 : (ssize_t)written;
}

ssize_t extattr_get_fd(int fd, int space, const char *name, void *value, size_t size) {
  (void)space;
  return fgetxattr(fd, full_name(name), value, size);
}

ssize_t extattr_set_fd(int fd, int space, const char *name, const void *value, size_t size) {
  (void)space;
  return fsetxattr(fd, full_name(name), value, size, 0) < 0 ? -1 : (ssize_t)size;
}

int extattr_delete_fd(int fd, int space, const char *name) {
  (void)space;
  return fremovexattr(fd, full_name(name));
}

int getvfsbyname(const char *name, struct xvfsconf *kind) {
  static const struct {
    const char *name;
    uint32_t number;
  } kinds[] = {{"fusefs", 0x65735546}, {"nfs", 0x6969}, {"smbfs", 0xff534d42}};
  for (unsigned index = 0; index < sizeof kinds / sizeof kinds[0]; index++) {
    kind->vfc_typenum = (int)kinds[index].number;
    if (strcmp(kinds[index].name, name) == 0) return 0;
  }
  errno = ENOENT;
  return -1;
}
