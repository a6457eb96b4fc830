// Stands in for jexec(8) where there is no FreeBSD: its options, environment and failures, as its manual and
// source of FreeBSD 14 have them.
//
//   jexec [-l] [-d DIRECTORY] [-u USER | -U USER] JAIL [COMMAND …]
//
// FreeBSD has one space of process ids. jexec(8) becomes the command, which the host sees under the same id, and a
// process inside sees and signals processes of its jail alone. Linux has no jail of that kind: a process that sees less
// is in a PID namespace, which no process can enter itself, only its children. So there are two kinds of host here.
// Where there is the file `one-pid-space`, jexec becomes the command in the host's PID space: parents, process groups,
// reaping and signals are FreeBSD's, but inside every process of the host is seen, and root can signal it. Elsewhere a
// jail has a PID namespace: jexec has a child there, of the same number and in the same group of processes, and passes
// on what it is sent and how the child ended. SIGSTOP alone stays with it, and the ids of its descendants differ.
//
// Source: usr.sbin/jexec/jexec.c (main, get_user_info), lib/libjail/jail_getid.c (jail_getid). Without -l, -u and -U it
// changes neither the environment nor the user, and it closes no descriptor. -d came with 15. Not here: both at once,
// login.conf(5) beyond the class `default`, MAC labels, cpusets, `-i` of a shell without a command.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/sched.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jail-table.h"

extern char **environ;

enum { INHERITED_DESCRIPTORS = 100, COMPANIONS = 2 };

static _Noreturn void fail(const char *what, const char *why) {
  fprintf(stderr, "jexec: %s: %s\n", what, why);
  exit(1);
}

/** A pair of sockets and a process at the far end, which is outside of the jail and has nothing else open. */
struct companion {
  pid_t pid;
  int near;
};

static struct companion start_companion(void (*run)(int far)) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) fail("socketpair", strerror(errno));
  pid_t pid = fork();
  if (pid < 0) fail("fork", strerror(errno));
  if (pid == 0) {
    dup2(ends[1], 0);
    syscall(SYS_close_range, 1u, ~0u, 0u);
    run(0);
    _exit(0);
  }
  // Out of the way of what was inherited, which this process must not keep open.
  int near = fcntl(ends[0], F_DUPFD_CLOEXEC, INHERITED_DESCRIPTORS);
  close(ends[0]);
  close(ends[1]);
  return (struct companion){pid, near};
}

/**
 * Runs in the process group of its parent. For each signal number that it reads, it answers whether it received that
 * signal as well: then the signal was sent to the whole group.
 */
static void witness(int far) {
  struct timespec at_once = {0, 0};
  for (char number; read(far, &number, 1) == 1;) {
    sigset_t asked;
    sigemptyset(&asked);
    sigaddset(&asked, number);
    char was_sent = sigtimedwait(&asked, NULL, &at_once) == number;
    if (write(far, &was_sent, 1) != 1) return;
  }
}

static bool was_for_group(const struct companion *companion, int number) {
  char asked = (char)number, answer = 0;
  // setpgid returns only after the kernel has sent the signal to every process of the group.
  setpgid(companion->pid, getpgrp());
  return write(companion->near, &asked, 1) == 1 && read(companion->near, &answer, 1) == 1 && answer;
}

/** The command, while there is one, for all processes of this program. */
static volatile pid_t *child;

/** Outlives its parent, whose command does not: the command's own users keep it from asking for that itself. */
static void undertake(int far) {
  char none;
  setsid();
  while (read(far, &none, 1) > 0) continue;
  if (*child > 0) kill(*child, SIGKILL);
}

/** Passes signals on to the command until it ends. @return how it did. */
static int accompany(const struct companion *companion, const sigset_t *all) {
  for (int status;;) {
    int number = sigwaitinfo(all, NULL);
    if (number == SIGCHLD && waitpid(*child, &status, WNOHANG) == *child) {
      *child = 0;
      return status;
    }
    if (number <= 0 || number == SIGCHLD) continue;
    bool is_group = was_for_group(companion, number);
    if (getpgid(*child) != getpgrp()) kill(is_group ? -*child : *child, number);
    else if (!is_group) kill(*child, number);
  }
}

/** The namespace of processes comes last: it counts for children alone. */
static void enter(const struct jail *jail, bool has_own_pids) {
  static const char *const names[] = {"mnt", "uts", "ipc", "net", "pid"};
  unsigned count = has_own_pids ? 5 : 4;
  int descriptors[5];
  char path[64];
  for (unsigned index = 0; index < count; index++) {
    snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)jail->init, names[index]);
    descriptors[index] = open(path, O_RDONLY | O_CLOEXEC);
  }
  for (unsigned index = 0; index < count; index++) {
    if (descriptors[index] < 0 || setns(descriptors[index], 0) < 0) fail("jail_attach", strerror(errno));
    close(descriptors[index]);
  }
}

static pid_t fork_as(pid_t wanted) {
  // Of the namespace that was entered alone; elsewhere the kernel chooses.
  struct clone_args arguments = {.exit_signal = SIGCHLD, .set_tid = (uint64_t)(uintptr_t)&wanted, .set_tid_size = 1};
  pid_t pid = (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
  return pid < 0 && errno == EEXIST ? fork() : pid;
}

/** Returns in a child inside; this process accompanies it and ends as it does. */
static void fork_into(const struct jail *jail) {
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  child = mmap(NULL, sizeof *child, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (child == MAP_FAILED) fail("mmap", strerror(errno));
  struct companion companion = start_companion(witness);
  start_companion(undertake);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) < 0) fail("pipe", strerror(errno));
  pid_t own = getpid();
  enter(jail, true);
  pid_t forked = fork_as(own);
  if (forked < 0) fail("fork", strerror(errno));
  if (forked > 0) {
    *child = forked;
    // The child waits for this byte: its signals can be passed on only once `*child` is set.
    (void)!write(ends[1], "", 1);
    syscall(SYS_close_range, 0u, INHERITED_DESCRIPTORS - 1u, 0u);
    syscall(SYS_close_range, INHERITED_DESCRIPTORS + COMPANIONS + 0u, ~0u, 0u);
    int status = accompany(&companion, &all);
    if (WIFEXITED(status)) _exit(WEXITSTATUS(status));
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    signal(WTERMSIG(status), SIG_DFL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    kill(getpid(), WTERMSIG(status));
    pause();
  }
  char go;
  close(ends[1]);
  if (read(ends[0], &go, 1) != 1) _exit(1);
  close(ends[0]);
  sigprocmask(SIG_SETMASK, &before, NULL);
}

static void become(const struct passwd *user) {
  if (initgroups(user->pw_name, user->pw_gid) < 0 || setgid(user->pw_gid) < 0 || setuid(user->pw_uid) < 0) {
    fail("setusercontext", strerror(errno));
  }
}

/** Environment that login.conf(5) of FreeBSD 14 gives the class `default`, after -l has dropped all but TERM. */
static void clear_environment(const struct passwd *user, bool has_user) {
  const char *terminal = getenv("TERM");
  char *kept = terminal ? strdup(terminal) : NULL;
  clearenv();
  if (kept != NULL) setenv("TERM", kept, 1);
  setenv("PATH", "/bin:/usr/bin", 1);
  if (has_user) {
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, "/sbin:/bin:/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin:%s/bin", user->pw_dir);
    setenv("PATH", text, 1);
    snprintf(text, sizeof text, "/var/mail/%s", user->pw_name);
    setenv("MAIL", text, 1);
    setenv("BLOCKSIZE", "K", 1);
    setenv("LANG", "C.UTF-8", 1);
    setenv("MM_CHARSET", "UTF-8", 1);
    umask(022);
  }
  setenv("HOME", user->pw_dir, 1);
  setenv("SHELL", user->pw_shell, 1);
  setenv("USER", user->pw_name, 1);
}

int main(int count, char **words) {
  const char *directory = NULL, *host_user = NULL, *jail_user = NULL;
  bool is_login = false;
  struct jail jail;
  open_table();
  for (int option; (option = getopt(count, words, "+d:lnu:U:")) != -1;) {
    if (option == 'd') directory = optarg;
    else if (option == 'l') is_login = true;
    else if (option == 'u') host_user = optarg;
    else if (option == 'U') jail_user = optarg;
    else return 1;
  }
  if (optind >= count || (host_user != NULL && jail_user != NULL)) {
    fprintf(stderr, "usage: jexec [-l] [-d working-directory] [-u username | -U username] jail [command ...]\n");
    return 1;
  }
  if (!find_jail(words[optind], &jail)) {
    fprintf(stderr, "jexec: %s\n", reason_without(words[optind]));
    return 1;
  }
  struct passwd *user = NULL;
  if (host_user != NULL && (user = getpwnam(host_user)) == NULL) fail(host_user, "no such user");
  const char *const groups = in_table("groups");
  char group_files[TEXT_BYTES * 2];
  snprintf(group_files, sizeof group_files, "%s/%s", groups, jail.name);
  FILE *limits = fopen(group_files, "re");
  char file[TEXT_BYTES];
  int controllers[8], controller_count = 0;
  while (limits != NULL && controller_count < 8 && fgets(file, sizeof file, limits) != NULL) {
    file[strcspn(file, "\n")] = 0;
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    if (fd < 0) fail("rctl", strerror(errno));
    controllers[controller_count++] = fd;
  }
  if (limits != NULL) fclose(limits);
  if (has_one_pid_space()) enter(&jail, false);
  else fork_into(&jail);
  for (int index = 0; index < controller_count; index++) {
    if (write(controllers[index], "0", 1) != 1) fail("rctl", strerror(errno));
    close(controllers[index]);
  }
  if (chdir("/") < 0) fail("chdir", strerror(errno));
  if (jail_user != NULL && (user = getpwnam(jail_user)) == NULL) fail(jail_user, "no such user");
  bool has_user = user != NULL;
  if (user == NULL && (user = getpwuid(getuid())) == NULL) fail("getpwuid", "no such user");
  if (is_login) clear_environment(user, has_user);
  const char *home = is_login && has_user ? user->pw_dir : NULL;
  if (confine() < 0) fail("jail_attach", strerror(errno));
  if (has_user) become(user);
  const char *where = directory ? directory : home;
  if (where != NULL && chdir(where) < 0) {
    fprintf(stderr, "jexec: chdir: %s: %s\n", where, strerror(errno));
    return 1;
  }
  char *shell[] = {user->pw_shell, NULL};
  char **command = optind + 1 < count ? words + optind + 1 : shell;
  execvp(command[0], command);
  fprintf(stderr, "jexec: execvp: %s: %s\n", command[0], strerror(errno));
  return 1;
}
