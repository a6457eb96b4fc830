// FreeBSD, since 14. No other file uses interfaces that only FreeBSD has.
#include "platform.h"
#ifdef COPPICE_IS_FREEBSD
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/extattr.h>
#include <sys/mount.h>
#include <sys/procctl.h>
#include <sys/stat.h>
#include <sys/user.h>
#include <unistd.h>

#ifdef COPPICE_HAS_INOTIFY
#include <sys/inotify.h>
#endif

enum { OPEN_ATTEMPTS = 64, LINKS_LIMIT = 40, GROUPS = 256 };

void platform_harden(void) {
  // Ends with the next exec, so that programs can be debugged. Not PROC_NO_NEW_PRIVS_CTL, which would break sudo(8).
  int disable = PROC_TRACE_CTL_DISABLE;
  procctl(P_PID, 0, PROC_TRACE_CTL, &disable);
  procctl(P_PID, 0, PROC_REAP_ACQUIRE, NULL);
}

void platform_close_from(int first) { close_range((unsigned)first, ~0u, 0); }

void platform_kill_children(void) {
  struct procctl_reaper_kill all = {.rk_sig = SIGKILL};
  procctl(P_PID, 0, PROC_REAP_KILL, &all);
}

// --- files

bool platform_path(int fd, char *path, size_t size) {
  static struct kinfo_file info;
  info.kf_structsize = sizeof info;
  if (fcntl(fd, F_KINFO, &info) < 0 || info.kf_path[0] != '/' || strlen(info.kf_path) >= size) return false;
  strcpy(path, info.kf_path);
  return true;
}

static void drop_last(char *path) {
  char *slash = strrchr(path, '/');
  if (slash != NULL) *slash = 0;
}

/**
 * Resolves the links of an absolute path within the root.
 * @param plain gets the target: a path without links or dots, which begins with a slash unless it is empty.
 * @return 0 or an errno.
 */
static int resolve(const char *path, bool follows, char plain[PATH_MAX]) {
  static char rest[2 * PATH_MAX], longer[2 * PATH_MAX], target[PATH_MAX];
  if (strlen(path) >= PATH_MAX) return ENAMETOOLONG;
  strcpy(rest, path);
  plain[0] = 0;
  unsigned links = 0;
  for (char *next = rest + strspn(rest, "/"); *next != 0;) {
    const char *name = next;
    size_t length = strcspn(name, "/");
    bool is_last = name[length] == 0;
    next += length + strspn(name + length, "/");
    if (length == 1 && name[0] == '.') continue;
    if (length == 2 && name[0] == '.' && name[1] == '.') {
      drop_last(plain);
      continue;
    }
    size_t before = strlen(plain);
    if (before + length + 2 > PATH_MAX) return ENAMETOOLONG;
    plain[before] = '/';
    memcpy(plain + before + 1, name, length);
    plain[before + 1 + length] = 0;
    if (is_last && !follows) return 0;
    ssize_t count = readlinkat(root_directory, plain + 1, target, sizeof target - 1);
    // No link, or, at the end, a missing file.
    if (count < 0 && (errno == EINVAL || (errno == ENOENT && is_last))) continue;
    if (count < 0) return errno;
    if (++links > LINKS_LIMIT) return ELOOP;
    target[count] = 0;
    plain[target[0] == '/' ? 0 : before] = 0;
    if ((size_t)count + strlen(next) + 2 > PATH_MAX) return ENAMETOOLONG;
    strcpy(longer, target);
    if (!is_last) strcat(strcat(longer, "/"), next);
    strcpy(rest, longer);
    next = rest + strspn(rest, "/");
  }
  return 0;
}

/** True for a descriptor of a link itself, where it should have been followed. */
static bool is_stray(int fd, int flags) {
  struct stat status;
  return !(flags & O_NOFOLLOW) && fstat(fd, &status) == 0 && S_ISLNK(status.st_mode);
}

int platform_open(const char *path, int flags, mode_t mode) {
  if (!is_confined) return open(path, flags, mode);
  char plain[PATH_MAX];
  for (unsigned attempt = 0; attempt < OPEN_ATTEMPTS; attempt++) {
    int error = resolve(path, !(flags & O_NOFOLLOW), plain);
    errno = error;
    if (error != 0) return -1;
    // A directory that was replaced by a link since then leads nowhere else.
    int fd = openat(root_directory, plain[0] == 0 ? "." : plain + 1, flags | O_NOFOLLOW | O_RESOLVE_BENEATH, mode);
    if (fd >= 0 && !is_stray(fd, flags)) return fd;
    if (fd >= 0) close(fd);
    else if (errno != ENOTCAPABLE && errno != EMLINK) return -1;
  }
  errno = EACCES;
  return -1;
}

int platform_reopen(int fd, int flags) { return openat(fd, "", flags | O_EMPTY_PATH); }

int platform_temporary(int directory) {
  (void)directory;
  errno = ENOTSUP;
  return -1;
}

int platform_link(int fd, int directory, const char *name) {
  (void)fd;
  (void)directory;
  (void)name;
  errno = ENOTSUP;
  return -1;
}

static int is_of_type(int fd, const char *const *names, size_t count) {
  struct statfs status;
  if (fstatfs(fd, &status) < 0) return -1;
  for (size_t index = 0; index < count; index++) {
    // The comparison is by type number: nullfs(5) reports the number of its lower file system, but its own name.
    struct xvfsconf known;
    if (getvfsbyname(names[index], &known) == 0 && (uint32_t)known.vfc_typenum == (uint32_t)status.f_type) return 1;
  }
  return 0;
}

int platform_is_network(int fd) {
  static const char *const names[] = {"fusefs", "nfs", "smbfs"};
  return is_of_type(fd, names, sizeof names / sizeof names[0]);
}

int platform_is_of_processes(int fd) {
  static const char *const name = "procfs";
  return is_of_type(fd, &name, 1);
}

// The system does so by itself.
void platform_widen_pipe(int fd, int bytes) {
  (void)fd;
  (void)bytes;
}

int platform_change_mode(int fd, mode_t mode) { return fchmodat(fd, "", mode, AT_EMPTY_PATH); }

// --- identity: it belongs to the whole process, so there must be only one thread

static gid_t own_groups[NGROUPS_MAX + 1];
static int own_group_count = -1;
static uid_t own_user;
static gid_t own_group;

/** Before FreeBSD 15 the first group replaces the effective one. */
static int set_groups(gid_t gid, const uint32_t *groups, unsigned count) {
  gid_t all[GROUPS + 1] = {gid};
  unsigned length = 1;
  for (unsigned index = 0; index < count && index < GROUPS; index++) {
    if (groups[index] != gid) all[length++] = groups[index];
  }
  return setgroups((int)length, all);
}

void platform_name_session(const char *name) {
  // setsid(2) keeps the name of whoever started the service, which getlogin(2) in a sandbox would return.
  if (getsid(0) == getpid()) setlogin(name);
}

int platform_become(uint32_t uid, uint32_t gid, const uint32_t *groups, unsigned count) {
  return set_groups(gid, groups, count) < 0 || setgid(gid) < 0 || setuid(uid) < 0 ? -1 : 0;
}

/** Changes only the effective ids: with the real ones, other users could trace or signal this process. */
int platform_act_as(uint32_t uid, uint32_t gid, const uint32_t *groups, unsigned count) {
  own_group_count = -1;
  own_user = geteuid();
  own_group = getegid();
  if (uid == own_user && gid == own_group) return 0;
  int own = getgroups(sizeof own_groups / sizeof own_groups[0], own_groups);
  if (own < 0 || set_groups(gid, groups, count) < 0) return -1;
  own_group_count = own;
  if (setegid(gid) == 0 && seteuid(uid) == 0) return 0;
  platform_act_as_self();
  errno = EPERM;
  return -1;
}

void platform_act_as_self(void) {
  if (own_group_count < 0) return;
  // Exits rather than continue with another identity.
  if (seteuid(own_user) < 0 || setgroups(own_group_count, own_groups) < 0 || setegid(own_group) < 0) abort();
  own_group_count = -1;
}

// --- extended attributes, in FreeBSD's separate user name space

static const char SPACE[] = "user.";
enum { SPACE_LENGTH = sizeof SPACE - 1 };

/** A descriptor for attributes: the same one, or a reopened one for O_PATH. */
static int operable(int fd, bool is_to_write) {
  struct stat status;
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fstat(fd, &status) < 0) return -1;
  if (!(flags & O_PATH)) return fd;
  errno = EPERM;
  // Opening another kind of file may block or have side effects.
  if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) return -1;
  int opened = platform_reopen(fd, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (opened < 0 && errno == EACCES && is_to_write) opened = platform_reopen(fd, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  return opened;
}

static void release(int operable, int fd) {
  int error = errno;
  if (operable != fd) close(operable);
  errno = error;
}

static const char *plain_name(const char *name) {
  return strncmp(name, SPACE, SPACE_LENGTH) == 0 ? name + SPACE_LENGTH : name;
}

ssize_t platform_list_attributes(int fd, char *names, size_t size) {
  // Names are length-prefixed, without a NUL.
  static uint8_t list[64 * 1024];
  int file = operable(fd, false);
  if (file < 0) return -1;
  ssize_t count = extattr_list_fd(file, EXTATTR_NAMESPACE_USER, list, sizeof list);
  release(file, fd);
  size_t written = 0;
  for (ssize_t position = 0; position < count && position + 1 + list[position] <= count; position += 1 + list[position]) {
    size_t length = list[position];
    if (written + SPACE_LENGTH + length + 1 > size) {
      errno = ERANGE;
      return -1;
    }
    memcpy(names + written, SPACE, SPACE_LENGTH);
    memcpy(names + written + SPACE_LENGTH, list + position + 1, length);
    written += SPACE_LENGTH + length + 1;
    names[written - 1] = 0;
  }
  return count < 0 ? -1 : (ssize_t)written;
}

ssize_t platform_get_attribute(int fd, const char *name, void *value, size_t size) {
  int file = operable(fd, false);
  if (file < 0) return -1;
  ssize_t count = extattr_get_fd(file, EXTATTR_NAMESPACE_USER, plain_name(name), value, size);
  release(file, fd);
  return count;
}

int platform_set_attribute(int fd, const char *name, const void *value, size_t size) {
  int file = operable(fd, true);
  if (file < 0) return -1;
  ssize_t count = extattr_set_fd(file, EXTATTR_NAMESPACE_USER, plain_name(name), value, size);
  release(file, fd);
  return count < 0 ? -1 : 0;
}

int platform_remove_attribute(int fd, const char *name) {
  int file = operable(fd, true);
  if (file < 0) return -1;
  int result = extattr_delete_fd(file, EXTATTR_NAMESPACE_USER, plain_name(name));
  release(file, fd);
  return result;
}

// --- changes of directories

#ifdef COPPICE_HAS_INOTIFY
int platform_inotify_add(int changes, int directory, uint32_t mask) {
  return inotify_add_watch_at(changes, directory, ".", mask);
}
#endif
#endif
