// User namespaces for a server that is not root. The launcher becomes root of a user namespace, where it can own and
// remove files of every id of a sandbox. Each sandbox has a nested user namespace, so that its processes are counted
// separately. A later launcher joins the namespace of the last one while a process still lives in it: only from there
// may it connect old and new sandboxes to a network.
#define _GNU_SOURCE
#include "user-namespace.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/nsfs.h>
#include <linux/sched.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAP_WORDS_LIMIT = 32, IDS = 65536, RANGES_LIMIT = 256 };

static const char *sandbox_users, *sandbox_groups;

static bool write_to(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool is_written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
  int error = errno;
  close(fd);
  errno = error;
  return is_written;
}

/** Runs newuidmap or newgidmap for the parent process. */
static _Noreturn void run_mapper(char *program, char *map) {
  char pid[16], *arguments[MAP_WORDS_LIMIT + 3] = {program, pid};
  snprintf(pid, sizeof pid, "%d", (int)getppid());
  unsigned count = 2;
  char *rest = map;
  for (char *word; (word = strsep(&rest, " ")) != NULL && count < MAP_WORDS_LIMIT + 2;) arguments[count++] = word;
  char *const environment[] = {NULL};
  execve(program, arguments, environment);
  _exit(127);
}

static bool has_succeeded(pid_t pid) {
  int status;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/** Forks a child that waits outside of the new namespace, because only from there can it be mapped. */
static pid_t prepare_mapper(char *program, char *map, int go[2]) {
  if (pipe2(go, O_CLOEXEC) < 0) return -1;
  pid_t pid = fork();
  if (pid != 0) {
    close(go[0]);
    return pid;
  }
  char byte;
  close(go[1]);
  if (read(go[0], &byte, 1) != 1) _exit(1);
  run_mapper(program, map);
}

static const char *make_user_namespace(char *const words[USER_NAMESPACE_WORDS]) {
  char *user_mapper = words[0], *users = words[1], *group_mapper = words[2], *groups = words[3];
  bool has_mappers = user_mapper[0] != 0;
  int go[2][2];
  pid_t mappers[2] = {-1, -1};
  if (has_mappers) {
    mappers[0] = prepare_mapper(user_mapper, users, go[0]);
    mappers[1] = prepare_mapper(group_mapper, groups, go[1]);
    if (mappers[0] < 0 || mappers[1] < 0) return "fork";
  }
  if (unshare(CLONE_NEWUSER) < 0) {
    // The children end at the end of their pipes. The second also holds the first one's pipe.
    for (unsigned index = 0; has_mappers && index < 2; index++) close(go[index][1]);
    return "make a user namespace";
  }
  if (has_mappers) {
    for (unsigned index = 0; index < 2; index++) {
      (void)!write(go[index][1], "", 1);
      close(go[index][1]);
      errno = EPERM;
      if (!has_succeeded(mappers[index])) return index == 0 ? "map user ids" : "map groups";
    }
    // Supplementary groups must not give sandboxes access on the host.
    if (setgroups(0, NULL) < 0) return "leave groups";
  } else {
    // The kernel lets unprivileged processes map a group only if setgroups is denied: leaving a group could grant
    // access that the group denies.
    if (!write_to("/proc/self/setgroups", "deny")) return "deny setgroups";
    if (!write_to("/proc/self/uid_map", users)) return "map the user id";
    if (!write_to("/proc/self/gid_map", groups)) return "map the group";
  }
  return NULL;
}

/** Joins the parent of a process's user namespace. */
static bool join_namespace_above(const char *pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%s/ns/user", pid);
  int inner = open(path, O_RDONLY | O_CLOEXEC);
  int outer = inner < 0 ? -1 : ioctl(inner, NS_GET_PARENT);
  bool is_joined = outer >= 0 && setns(outer, CLONE_NEWUSER) == 0;
  if (inner >= 0) close(inner);
  if (outer >= 0) close(outer);
  return is_joined;
}

const char *enter_user_namespace(char *const words[USER_NAMESPACE_WORDS]) {
  bool is_joined = words[6][0] != 0 && join_namespace_above(words[6]);
  const char *failed = is_joined ? NULL : make_user_namespace(words);
  if (failed != NULL) return failed;
  sandbox_users = words[4];
  sandbox_groups = words[5];
  return NULL;
}

static int make_range_namespace(const char *first) {
  char map[64], path[32];
  int namespace = -1;
  snprintf(map, sizeof map, "0 %s %d", first, IDS);
  // Processes in the namespace count against the user who created it, so each sandbox needs a different one. Some
  // kernels need capabilities to create one.
  if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) < 0) return -1;
  struct clone_args arguments = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
  pid_t pid = seteuid((uid_t)strtoul(first, NULL, 10)) < 0 ? -1 : (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    for (;;) pause();
  }
  int error = errno;
  if (seteuid(0) < 0 || prctl(PR_SET_SECUREBITS, 0, 0, 0, 0) < 0) abort();
  errno = error;
  if (pid < 0) return -1;
  snprintf(path, sizeof path, "/proc/%d/uid_map", (int)pid);
  bool is_mapped = write_to(path, map);
  snprintf(path, sizeof path, "/proc/%d/gid_map", (int)pid);
  is_mapped = is_mapped && write_to(path, map);
  snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
  if (is_mapped) namespace = open(path, O_RDONLY | O_CLOEXEC);
  error = errno;
  kill(pid, SIGKILL);
  has_succeeded(pid);
  errno = error;
  return namespace;
}

int range_namespace(const char *first) {
  static struct {
    char first[16];
    int namespace;
  } kept[RANGES_LIMIT];
  static unsigned count, oldest;
  for (unsigned index = 0; index < count; index++) {
    if (strcmp(kept[index].first, first) == 0) return kept[index].namespace;
  }
  int namespace = make_range_namespace(first);
  if (namespace < 0) return -1;
  unsigned index = count < RANGES_LIMIT ? count++ : oldest++ % RANGES_LIMIT;
  // Sandboxes that still run in it keep it alive.
  if (kept[index].first[0] != 0) close(kept[index].namespace);
  snprintf(kept[index].first, sizeof kept[index].first, "%s", first);
  kept[index].namespace = namespace;
  return namespace;
}

bool is_in_user_namespace(void) { return sandbox_users != NULL; }

bool map_sandbox(pid_t pid) {
  char path[32];
  snprintf(path, sizeof path, "/proc/%d/uid_map", (int)pid);
  if (!write_to(path, sandbox_users)) return false;
  snprintf(path, sizeof path, "/proc/%d/gid_map", (int)pid);
  return write_to(path, sandbox_groups);
}
