// Linux. No other file uses interfaces that only Linux has.
#include "platform.h"
#include "shown.h"
#ifndef COPPICE_IS_FREEBSD
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/fsuid.h>
#include <sys/xattr.h>
#include <unistd.h>

#if __has_include(<linux/openat2.h>)
#include <linux/openat2.h>
#else
// Compilers for musl do not find the kernel's headers.
enum { RESOLVE_NO_MAGICLINKS = 0x02, RESOLVE_IN_ROOT = 0x10 };
struct open_how {
  uint64_t flags, mode, resolve;
};
#endif

enum { OPEN_ATTEMPTS = 64 };

void platform_harden(void) {
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
}

void platform_close_from(int first) { syscall(SYS_close_range, (unsigned)first, ~0u, 0u); }

static pid_t parent_of(const char *pid) {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length <= 0) return -1;
  text[length] = 0;
  // The name before it may contain any character.
  const char *end = strrchr(text, ')');
  return end && strlen(end) > 4 ? (pid_t)strtol(end + 4, NULL, 10) : -1;
}

// Reads all of /proc: not every kernel has a list of children (`/proc/<pid>/task/<tid>/children`).
void platform_kill_children(void) {
  DIR *processes = opendir("/proc");
  if (processes == NULL) return;
  const struct dirent *entry;
  while ((entry = readdir(processes)) != NULL) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || parent_of(entry->d_name) != getpid()) continue;
    kill((pid_t)strtol(entry->d_name, NULL, 10), SIGKILL);
  }
  closedir(processes);
}

// --- files

/** Path through the descriptor itself, until the next call. */
static const char *path_to(int fd) {
  static char link[32];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  return link;
}

bool platform_path(int fd, char *path, size_t size) {
  ssize_t length = readlink(path_to(fd), path, size - 1);
  if (length <= 0 || path[0] != '/') return false;
  path[length] = 0;
  return true;
}

int platform_open(const char *path, int flags, mode_t mode) {
  // No magic links: a descriptor of this process may refer to a file of the host.
  struct open_how how = {
      .flags = (uint64_t)(unsigned)flags, .mode = flags & O_CREAT ? mode : 0, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
  for (unsigned attempt = 0;; attempt++) {
    int fd = (int)syscall(SYS_openat2, root_directory, path, &how, sizeof how);
    // During a concurrent rename the kernel cannot rule out that `..` leads out.
    if (fd >= 0 || errno != EAGAIN || attempt == OPEN_ATTEMPTS) return fd;
  }
}

int platform_reopen(int fd, int flags) {
  int opened = open(path_to(fd), flags);
  if (opened >= 0 || errno != EAGAIN) return opened;
  // This process has a lease on it.
  shown_renew();
  return open(path_to(fd), flags);
}

int platform_temporary(int directory) {
  return open(path_to(directory), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

int platform_link(int fd, int directory, const char *name) {
  return linkat(AT_FDCWD, path_to(fd), directory, name, AT_SYMLINK_FOLLOW);
}

static int is_of_type(int fd, const uint32_t *types, size_t count) {
  struct statfs status;
  if (fstatfs(fd, &status) < 0) return -1;
  for (size_t index = 0; index < count; index++) {
    if ((uint32_t)status.f_type == types[index]) return 1;
  }
  return 0;
}

int platform_is_network(int fd) {
  // From <linux/magic.h>, which compilers for musl do not find, in its order: CIFS, FUSE, NFS, SMB, SMB 2.
  static const uint32_t types[] = {0xff534d42, 0x65735546, 0x6969, 0x517b, 0xfe534d42};
  return is_of_type(fd, types, sizeof types / sizeof types[0]);
}

int platform_is_of_processes(int fd) {
  static const uint32_t type = 0x9fa0;
  return is_of_type(fd, &type, 1);
}

void platform_widen_pipe(int fd, int bytes) { fcntl(fd, F_SETPIPE_SZ, bytes); }

int platform_change_mode(int fd, mode_t mode) {
  return chmod(path_to(fd), mode);
}

// --- identity, of the calling thread alone: functions of the C library change that of every thread, and wait for them

static int set_groups(size_t count, const gid_t *groups) { return (int)syscall(SYS_setgroups, count, groups); }

void platform_name_session(const char *name) { (void)name; }

int platform_become(uint32_t uid, uint32_t gid, const uint32_t *groups, unsigned count) {
  if (set_groups(count, (const gid_t *)groups) < 0 || syscall(SYS_setgid, gid) < 0) return -1;
  return (int)syscall(SYS_setuid, uid);
}

static gid_t own_groups[256];
static int own_group_count = -1;

int platform_act_as(uint32_t uid, uint32_t gid, const uint32_t *groups, unsigned count) {
  own_group_count = -1;
  if (uid == (uint32_t)geteuid() && gid == (uint32_t)getegid()) return 0;
  int own = getgroups(sizeof own_groups / sizeof own_groups[0], own_groups);
  if (own < 0 || set_groups(count, (const gid_t *)groups) < 0) return -1;
  own_group_count = own;
  setfsgid(gid);
  setfsuid(uid);
  // Neither call reports failure.
  if ((uint32_t)setfsgid((gid_t)-1) == gid && (uint32_t)setfsuid((uid_t)-1) == uid) return 0;
  platform_act_as_self();
  errno = EPERM;
  return -1;
}

void platform_act_as_self(void) {
  if (own_group_count < 0) return;
  setfsuid(geteuid());
  setfsgid(getegid());
  // Exits rather than continue with another identity.
  if (set_groups((size_t)own_group_count, own_groups) < 0 || (uid_t)setfsuid((uid_t)-1) != geteuid()) abort();
  own_group_count = -1;
}

// --- extended attributes, by the path of the descriptor, because O_PATH descriptors have no access

ssize_t platform_list_attributes(int fd, char *names, size_t size) {
  // Each small file that is read or written asks: by the descriptor it takes a third of the time.
  ssize_t length = flistxattr(fd, names, size);
  return length < 0 && errno == EBADF ? listxattr(path_to(fd), names, size) : length;
}

ssize_t platform_get_attribute(int fd, const char *name, void *value, size_t size) {
  return getxattr(path_to(fd), name, value, size);
}

int platform_set_attribute(int fd, const char *name, const void *value, size_t size) {
  return setxattr(path_to(fd), name, value, size, 0);
}

int platform_remove_attribute(int fd, const char *name) { return removexattr(path_to(fd), name); }

// --- changes of directories

int platform_inotify_add(int changes, int directory, uint32_t mask) {
  return inotify_add_watch(changes, path_to(directory), mask);
}
#endif
