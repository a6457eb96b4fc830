// Stands in for jail(8) where there is no FreeBSD: the options and words of jail(8), the files of
// jail.conf(5), as their manuals and sources of FreeBSD 14 have them. Jails are namespaces of Linux.
//
//   jail [-qv] [-i] [-f FILE] -c NAME     makes it: mounts, exec.prestart, the jail, exec.created, exec.start, …
//   jail [-qv] [-f FILE] -r NAME|JID      SIGTERM, stop.timeout (10 s), SIGKILL; unmounts what FILE names
//   jail [-qv] -R NAME|JID                the same, without a look at any file
//
// With -v it says each command that it would run on FreeBSD, and what it asks of the kernel; with -q nothing but failures,
// and not that a jail to be removed is not there. Of -q, -i and -v the last one counts. Parameters of jail_set(2) are in
// the order of the file here.
//
// jail_remove(2) sends SIGKILL and waits for nobody, and umount(8) without -f does not unmount what a process uses that
// has not ended yet. There it is a matter of time; here it fails whenever there was one to be killed, for every mount. As
// there, the rest is done all the same: the address goes. A mount point whose path has a link by now is left, too.
//
// A jail with `vnet` gives the interfaces back that it was given (return-links.sh).
//
// A removed jail is dying until nothing refers to it any more, which does not keep its name from a new one.
//
// Source: usr.sbin/jail/jail.c (main, create_jail), command.c (next_command, run_command, finish_command, term_procs,
// check_path), config.c (load_config, check_intparams, import_params), lib/libjail/jail.c (jailparam_set), and
// sys/kern/kern_jail.c (kern_jail_set, prison_deref, prison_deref_kill). Not here: parameters on the command line, -m,
// wildcards, hierarchies, variables in a file, and what jail(8) takes back of a jail that it could not create.
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "jail-table.h"

enum { PARAMETERS_LIMIT = 128, STOP_TIMEOUT_S = 10, UNMOUNT_ATTEMPTS = 200 };

struct parameter {
  char name[64], value[TEXT_BYTES];
};

static struct parameter parameters[PARAMETERS_LIMIT];
static unsigned parameter_count;
static const char *subject;
/** -1 with -q, 1 with -v. */
static int verbosity;

static void note(const char *format, ...) {
  if (verbosity <= 0) return;
  va_list values;
  va_start(values, format);
  printf("%s: ", subject);
  vprintf(format, values);
  printf("\n");
  va_end(values);
  fflush(stdout);
}

static void warn(const char *format, va_list values) {
  fprintf(stderr, "jail: ");
  vfprintf(stderr, format, values);
  fprintf(stderr, "\n");
}

static _Noreturn void fail(const char *format, ...) {
  va_list values;
  va_start(values, format);
  warn(format, values);
  exit(1);
}

/** @return false, for what failed. */
static bool complain(const char *format, ...) {
  va_list values;
  va_start(values, format);
  warn(format, values);
  va_end(values);
  return false;
}

// --- jail.conf(5)

static const char *text;
static unsigned line = 1;
static const char *file;

static void skip_blanks(void) {
  for (;; text++) {
    if (*text == '\n') line++;
    if (isspace((unsigned char)*text)) continue;
    bool is_comment = *text == '#' || (text[0] == '/' && text[1] == '/');
    if (is_comment) {
      while (*text != 0 && text[1] != '\n') text++;
      if (*text == 0) return;
    } else if (text[0] == '/' && text[1] == '*') {
      const char *end = strstr(text + 2, "*/");
      if (end == NULL) return;
      text = end + 1;
    } else {
      return;
    }
  }
}

static _Noreturn void syntax(void) { fail("%s line %u: syntax error", file, line); }

static void read_word(char *word, size_t size) {
  size_t length = 0;
  char quote = *text == '"' || *text == '\'' ? *text++ : 0;
  while (*text != 0 && (quote ? *text != quote : !isspace((unsigned char)*text) && strchr("{}=+,;\"'", *text) == NULL)) {
    // Variables would have to be expanded.
    if (*text == '$' && quote != '\'') fail("%s line %u: variables are not known here", file, line);
    if (*text == '\\' && text[1] != 0) text++;
    if (*text == '\n') line++;
    if (length + 1 < size) word[length++] = *text;
    text++;
  }
  if (quote && *text++ != quote) syntax();
  if (!quote && length == 0) syntax();
  word[length] = 0;
}

static void add_parameter(const char *name, const char *value) {
  if (parameter_count == PARAMETERS_LIMIT) fail("too many parameters");
  struct parameter *parameter = &parameters[parameter_count++];
  snprintf(parameter->name, sizeof parameter->name, "%s", name);
  snprintf(parameter->value, sizeof parameter->value, "%s", value);
}

static void read_block(bool is_wanted) {
  char name[64], value[TEXT_BYTES];
  for (;;) {
    skip_blanks();
    if (*text == '}') {
      text++;
      return;
    }
    read_word(name, sizeof name);
    skip_blanks();
    if (*text == '+') text++;
    if (*text == '=') {
      do {
        text++;
        skip_blanks();
        read_word(value, sizeof value);
        if (is_wanted) add_parameter(name, value);
        skip_blanks();
      } while (*text == ',');
    } else if (is_wanted) {
      add_parameter(name, "true");
    }
    if (*text++ != ';') syntax();
  }
}

/** @return whether the file has a block for the jail. */
static bool read_configuration(const char *path, const char *name) {
  static char contents[65536];
  FILE *stream = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
  if (stream == NULL) fail("%s: %s", path, strerror(errno));
  contents[fread(contents, 1, sizeof contents - 1, stream)] = 0;
  text = contents;
  file = path;
  bool is_there = false;
  for (;;) {
    char block[256];
    skip_blanks();
    if (*text == 0) return is_there;
    read_word(block, sizeof block);
    skip_blanks();
    if (*text++ != '{') syntax();
    bool is_wanted = strcmp(block, name) == 0;
    is_there |= is_wanted;
    read_block(is_wanted);
  }
}

static const char *value_of(const char *name) {
  const char *value = NULL;
  for (unsigned index = 0; index < parameter_count; index++) {
    if (strcmp(parameters[index].name, name) == 0) value = parameters[index].value;
  }
  return value;
}

static bool is_set(const char *name) {
  const char *value = value_of(name);
  return value != NULL && strcmp(value, "false") != 0 && strcmp(value, "0") != 0;
}

/** Parameters of FreeBSD 14's kernel and jail(8), as far as they are used here. */
static void check_names(void) {
  static const char *const known[] = {
      "path", "host.hostname", "host.hostuuid", "persist", "vnet", "securelevel",
      "devfs_ruleset", "enforce_statfs", "children.max", "sysvmsg", "sysvsem", "sysvshm", "exec.clean", "exec.timeout",
      "exec.prestart", "exec.created", "exec.start", "exec.poststart", "exec.prestop", "exec.stop", "exec.poststop",
      "stop.timeout", "mount", "mount.devfs", "mount.fdescfs", "mount.procfs", "vnet.interface", "allow.set_hostname", "allow.noset_hostname",
      "allow.noraw_sockets", "allow.raw_sockets", "allow.nomount", "allow.nochflags", "allow.chflags", "allow.nosysvipc", "allow.nomlock",
      "allow.noread_msgbuf", "allow.nosocket_af", "allow.noquotas", "allow.nounprivileged_proc_debug", "allow.noextattr",
      "allow.noadjtime", "allow.nosettime", "allow.nosuser", "allow.suser", "allow.noreserved_ports"};
  for (unsigned index = 0; index < parameter_count; index++) {
    bool is_known = false;
    for (unsigned each = 0; each < sizeof known / sizeof known[0]; each++) {
      is_known |= strcmp(known[each], parameters[index].name) == 0;
    }
    if (!is_known) fail("%s: unknown parameter: %s", subject, parameters[index].name);
  }
}

// --- mounts

/** As check_path of jail(8): no part of a mount point below the root may be a link. */
static bool check_mount_point(const char *root, const char *target, const char *parameter) {
  char path[TEXT_BYTES];
  size_t length = strlen(root);
  struct stat status;
  if (strncmp(target, root, length) != 0 || target[length] != '/') return complain("%s: %s: %s not under %s", subject, parameter, target, root);
  for (const char *end = target + length; *end != 0;) {
    end += 1 + strcspn(end + 1, "/");
    snprintf(path, sizeof path, "%.*s", (int)(end - target), target);
    if (lstat(path, &status) < 0) return complain("%s: %s: %s: %s", subject, parameter, path, strerror(errno));
    if (S_ISLNK(status.st_mode)) return complain("%s: %s: %s is a symbolic link", subject, parameter, path);
  }
  return true;
}

static void mount_line(const char *root, const char *words) {
  char source[TEXT_BYTES], target[TEXT_BYTES], type[32], options[64];
  if (sscanf(words, "%1023s %1023s %31s %63s", source, target, type, options) != 4) fail("%s: mount: %s: bad line", subject, words);
  if (!check_mount_point(root, target, "mount")) exit(1);
  note("run command: /sbin/mount -t %s -o %s %s %s", type, options, source, target);
  if (strcmp(type, "nullfs") == 0) {
    if (mount(source, target, NULL, MS_BIND, NULL) < 0) fail("%s: mount: %s: %s", subject, source, strerror(errno));
    // FreeBSD knows devices in devfs(5) alone.
    unsigned long flags = MS_BIND | MS_REMOUNT | MS_NODEV;
    if (strncmp(options, "ro", 2) == 0) flags |= MS_RDONLY;
    if (strstr(options, ",nosuid") != NULL) flags |= MS_NOSUID;
    if (mount(NULL, target, NULL, flags, NULL) < 0) {
      fail("%s: mount: %s: %s", subject, target, strerror(errno));
    }
  } else if (strcmp(type, "tmpfs") == 0) {
    if (mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") < 0) fail("%s: mount: %s: %s", subject, target, strerror(errno));
  } else {
    fail("%s: mount: unknown file system %s", subject, type);
  }
}

static void mount_devices(const char *root) {
  static const struct {
    const char *name;
    unsigned major, minor;
  } nodes[] = {{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};
  static const char *const links[][2] = {
      {"fd", "/proc/self/fd"}, {"stdin", "fd/0"}, {"stdout", "fd/1"}, {"stderr", "fd/2"}, {"ptmx", "pts/ptmx"}};
  char path[TEXT_BYTES], inside[2 * TEXT_BYTES];
  snprintf(path, sizeof path, "%s/dev", root);
  if (!check_mount_point(root, path, "mount.devfs")) exit(1);
  const char *ruleset = value_of("devfs_ruleset");
  note("run command: /bin/sh -c . /etc/rc.subr; load_rc_config .; devfs_mount_jail %s%s%s", path, ruleset ? " " : "", ruleset ? ruleset : "");
  if (mount("devfs", path, "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k") < 0) fail("%s: mount.devfs: %s", subject, strerror(errno));
  for (unsigned index = 0; index < sizeof nodes / sizeof nodes[0]; index++) {
    snprintf(inside, sizeof inside, "%s/%s", path, nodes[index].name);
    if (mknod(inside, S_IFCHR | 0666, makedev(nodes[index].major, nodes[index].minor)) < 0) fail("%s: %s: %s", subject, inside, strerror(errno));
    chmod(inside, 0666);
  }
  for (unsigned index = 0; index < sizeof links / sizeof links[0]; index++) {
    snprintf(inside, sizeof inside, "%s/%s", path, links[index][0]);
    if (symlink(links[index][1], inside) < 0) fail("%s: %s: %s", subject, inside, strerror(errno));
  }
  static const char *const systems[][3] = {{"pts", "devpts", "newinstance,ptmxmode=0666,mode=0620,gid=5"}, {"shm", "tmpfs", "mode=1777,size=512m"}};
  for (unsigned index = 0; index < 2; index++) {
    snprintf(inside, sizeof inside, "%s/%s", path, systems[index][0]);
    if (mkdir(inside, 0755) < 0 || mount(systems[index][1], inside, systems[index][1], MS_NOSUID | MS_NOEXEC, systems[index][2]) < 0) {
      fail("%s: %s: %s", subject, inside, strerror(errno));
    }
  }
}

static void unmount(const char *path) {
  for (unsigned attempt = 0; umount2(path, 0) < 0 && errno == EBUSY && attempt < UNMOUNT_ATTEMPTS; attempt++) usleep(1000);
}

/** @return whether umount(8) may do it. */
static bool can_unmount(const char *root, const char *path, const char *parameter, const char *words, bool is_used) {
  struct statx status;
  if (!check_mount_point(root, path, parameter)) return false;
  // Where a guest has renamed what is mounted and made another directory.
  bool is_root = statx(AT_FDCWD, path, 0, 0, &status) == 0 && status.stx_attributes & STATX_ATTR_MOUNT_ROOT;
  if (!is_root) return complain("%s: %s: %s: not a mount point", subject, parameter, path);
  note("run command: /sbin/umount %s%s", words, path);
  if (!is_used) return true;
  fprintf(stderr, "umount: unmount of %s failed: Device busy\n", path);
  return complain("%s: /sbin/umount %s%s: failed", subject, words, path);
}

/** In the reverse of the order in which they were made. @return whether none is left. */
static bool unmount_all(const char *root, bool is_used) {
  char path[TEXT_BYTES + 8], type[32], words[64];
  bool is_whole = true;
  if (is_set("mount.procfs")) note("run command: /sbin/umount %s/proc", root);
  snprintf(path, sizeof path, "%s/dev", root);
  if (is_set("mount.devfs") && (is_whole = can_unmount(root, path, "mount.devfs", "", is_used))) {
    static const char *const names[] = {"dev/pts", "dev/shm", "dev"};
    for (unsigned index = 0; index < 3; index++) {
      snprintf(path, sizeof path, "%s/%s", root, names[index]);
      unmount(path);
    }
  }
  for (unsigned index = parameter_count; index-- > 0;) {
    bool is_mount = strcmp(parameters[index].name, "mount") == 0;
    if (!is_mount || sscanf(parameters[index].value, "%*s %1023s %31s", path, type) != 2) continue;
    snprintf(words, sizeof words, "-t %s ", type);
    if (can_unmount(root, path, "mount", words, is_used)) unmount(path);
    else is_whole = false;
  }
  return is_whole;
}

/** Runs one of the programs beside this one. @return whether it ended with 0. */
static bool run_beside(const char *program, const char *words) {
  char command[2 * TEXT_BYTES];
  snprintf(command, sizeof command, "%s %s", in_table(program), words);
  return system(command) == 0;
}

// --- the jail

static void run_hooks(const char *name) {
  for (unsigned index = 0; index < parameter_count; index++) {
    if (strcmp(parameters[index].name, name) != 0) continue;
    note("run command: %s", parameters[index].value);
    int status = system(parameters[index].value);
    if (status != 0) fail("%s: %s: failed", subject, parameters[index].value);
  }
}

static void hide_kernel(void) {
  static const char *const read_only[] = {"sys", "sysrq-trigger", "irq", "bus", "fs", "mtrr"};
  static const char *const hidden[] = {"kcore", "keys", "key-users", "timer_list", "sched_debug", "kallsyms", "kmsg", "vmallocinfo",
                                       "slabinfo", "modules", "kpagecount", "kpageflags", "kpagecgroup", "latency_stats"};
  char path[64];
  for (unsigned index = 0; index < sizeof read_only / sizeof read_only[0]; index++) {
    snprintf(path, sizeof path, "proc/%s", read_only[index]);
    if (mount(path, path, NULL, MS_BIND, NULL) == 0) mount(NULL, path, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL);
  }
  for (unsigned index = 0; index < sizeof hidden / sizeof hidden[0]; index++) {
    snprintf(path, sizeof path, "proc/%s", hidden[index]);
    mount("dev/null", path, NULL, MS_BIND, NULL);
  }
}

static _Noreturn void give_up(int say, const char *what) {
  dprintf(say, "%s: %s", what, strerror(errno));
  _exit(1);
}

/**
 * A user namespace of the same users: no process outside of it can be traced, or is seen in /proc. The network, whose low
 * ports its root has, belongs to it. With `vnet`, root of FreeBSD may configure it, too (sys/kern/kern_jail.c,
 * prison_priv_check).
 */
static void leave_users(int self) {
  int ends[2];
  char go;
  static const char everyone[] = "0 0 4294967295";
  if (pipe2(ends, O_CLOEXEC) < 0) return;
  // Only who is outside may write the map.
  pid_t helper = fork();
  if (helper == 0) {
    bool is_done = read(ends[0], &go, 1) == 1;
    for (unsigned index = 0; is_done && index < 2; index++) {
      int map = openat(self, index == 0 ? "uid_map" : "gid_map", O_WRONLY | O_CLOEXEC);
      is_done = write(map, everyone, sizeof everyone - 1) > 0;
    }
    _exit(is_done ? 0 : 1);
  }
  int status = -1;
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0) (void)!write(ends[1], "", 1);
  close(ends[1]);
  if (waitpid(helper, &status, 0) < 0 || status != 0) errno = EPERM;
  else errno = 0;
  close(ends[0]);
}

static _Noreturn void live(const struct jail *jail, int say) {
  setsid();
  int self = open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) give_up(say, "private mounts");
  if (mount(jail->path, jail->path, NULL, MS_BIND | MS_REC, NULL) < 0 || chdir(jail->path) < 0) give_up(say, jail->path);
  if (is_set("mount.procfs")) {
    // As there, it shows the processes of the jail alone; to other users than root, their own.
    if (mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "hidepid=ptraceable") < 0) give_up(say, "mount.procfs");
    hide_kernel();
  }
  // A namespace that keeps the mounts of other jails would keep their datasets busy.
  if (syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0) give_up(say, "root");
  if (sethostname(jail->hostname, strlen(jail->hostname)) < 0) give_up(say, "host.hostname");
  leave_users(self);
  if (errno != 0) give_up(say, "users");
  int null = open("/dev/null", O_RDWR);
  for (int standard = 0; null >= 0 && standard < 3; standard++) dup2(null, standard);
  say = fcntl(say, F_DUPFD_CLOEXEC, 100);
  syscall(SYS_close_range, 3u, (unsigned)say - 1, 0u);
  syscall(SYS_close_range, (unsigned)say + 1, ~0u, 0u);
  // FreeBSD's jails have no such process: nobody inside may look into it.
  if (confine() < 0 || prctl(PR_SET_DUMPABLE, 0) < 0) give_up(say, "privileges");
  close(say);
  sigset_t child_signal;
  sigemptyset(&child_signal);
  sigaddset(&child_signal, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child_signal, NULL);
  for (;;) {
    while (waitpid(-1, NULL, WNOHANG) > 0) continue;
    sigwaitinfo(&child_signal, NULL);
  }
}

/** Whether the kernel has it; the others are jail(8)'s own. */
static bool is_of_kernel(const char *name) {
  return strncmp(name, "exec.", 5) != 0 && strncmp(name, "mount", 5) != 0 && strcmp(name, "stop.timeout") != 0 && strcmp(name, "vnet.interface") != 0;
}

static void print_parameters(void) {
  if (verbosity <= 0) return;
  printf("%s: jail_set(JAIL_CREATE) name=%s", subject, subject);
  for (unsigned index = 0; index < parameter_count; index++) {
    const char *name = parameters[index].name, *value = parameters[index].value;
    if (!is_of_kernel(name)) continue;
    printf(strcmp(value, "true") == 0 ? " %s" : strpbrk(value, " \t") ? " %s=\"%s\"" : " %s=%s", name, value);
  }
  printf("\n");
}

static void create(bool wants_number) {
  struct jail jail = {0};
  struct stat status;
  const char *path = value_of("path");
  if (strchr(subject, '.') != NULL) fail("%s: jail names may not contain a period", subject);
  check_names();
  if (find_jail(subject, &jail)) fail("\"%s\" already exists", subject);
  if (path == NULL || path[0] != '/') fail("%s: path %s: not an absolute pathname", subject, path ? path : "");
  if (stat(path, &status) < 0) fail("%s: path %s: %s", subject, path, strerror(errno));
  if (!S_ISDIR(status.st_mode)) fail("%s: path %s: %s", subject, path, strerror(ENOTDIR));
  if (!is_set("persist") && value_of("exec.start") == NULL) fail("%s: not starting: no command and not persistent", subject);
  const char *hostname = value_of("host.hostname");
  snprintf(jail.name, sizeof jail.name, "%s", subject);
  snprintf(jail.path, sizeof jail.path, "%s", path);
  snprintf(jail.hostname, sizeof jail.hostname, "%s", hostname ? hostname : subject);
  for (unsigned index = 0; index < parameter_count; index++) {
    if (strcmp(parameters[index].name, "mount") == 0) mount_line(path, parameters[index].value);
  }
  if (is_set("mount.devfs")) mount_devices(path);
  if (is_set("mount.procfs")) note("run command: /sbin/mount -t procfs . %s/proc", path);
  run_hooks("exec.prestart");
  int ends[2];
  char reason[256] = "";
  if (pipe2(ends, O_CLOEXEC) < 0) fail("%s", strerror(errno));
  jail.init = (pid_t)syscall(SYS_clone, CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | SIGCHLD, NULL, NULL, NULL, NULL);
  if (jail.init == 0) live(&jail, ends[1]);
  close(ends[1]);
  ssize_t length = jail.init < 0 ? -1 : read(ends[0], reason, sizeof reason - 1);
  if (length != 0) {
    unmount_all(path, false);
    fail("%s: jail_set: %s", subject, length > 0 ? reason : strerror(errno));
  }
  jail.jid = next_jid();
  if (jail.jid < 0 || start_warden(&jail) < 0 || !write_jail(&jail)) {
    kill(jail.init, SIGKILL);
    unmount_all(path, false);
    fail("%s: jail_set: %s", subject, strerror(errno));
  }
  print_parameters();
  if (wants_number) printf("%d\n", jail.jid);
  if (verbosity >= 0) printf("%s: created\n", subject);
  run_hooks("exec.created");
  run_hooks("exec.poststart");
}

// --- end of a jail

/** Signals all but the first process, which FreeBSD's jails do not have; says whom it asks. @return how many there were. */
static unsigned signal_all(const struct jail *jail, int number) {
  unsigned count = 0;
  DIR *processes = opendir("/proc");
  for (struct dirent *entry; processes != NULL && (entry = readdir(processes)) != NULL;) {
    pid_t pid = (pid_t)atoi(entry->d_name);
    if (!is_in_jail(pid, jail)) continue;
    if (kill(pid, number) < 0) continue;
    if (number == SIGTERM && verbosity > 0) printf("%s%s %d", count == 0 ? subject : "", count == 0 ? ": sent SIGTERM to:" : "", (int)pid);
    count++;
  }
  if (number == SIGTERM && verbosity > 0 && count > 0) printf("\n");
  if (processes != NULL) closedir(processes);
  return count;
}

/** @return whether somebody had to be killed. */
static bool end(const struct jail *jail) {
  const char *timeout = value_of("stop.timeout");
  int wait_ms = 1000 * (timeout ? atoi(timeout) : STOP_TIMEOUT_S);
  if (wait_ms > 0) {
    signal_all(jail, SIGTERM);
    for (; wait_ms > 0 && signal_all(jail, 0) > 0; wait_ms -= 10) usleep(10000);
  }
  bool is_used = signal_all(jail, SIGKILL) > 0;
  // A child that was forked meanwhile.
  while (signal_all(jail, SIGKILL) > 0) usleep(1000);
  int process = (int)syscall(SYS_pidfd_open, jail->init, 0);
  char lent[64];
  snprintf(lent, sizeof lent, "net/lent/%d", (int)jail->init);
  if (access(in_table(lent), F_OK) == 0) {
    snprintf(lent, sizeof lent, "%d", (int)jail->init);
    run_beside("../bin/return-links", lent);
  }
  kill(jail->init, SIGKILL);
  struct pollfd gone = {process, POLLIN, 0};
  if (process >= 0) poll(&gone, 1, 30000);
  forget_jail(jail);
  return is_used;
}

static void destroy(const char *path) {
  struct jail jail;
  bool has_file = path != NULL && read_configuration(path, subject);
  if (!find_jail(subject, &jail)) {
    if (verbosity < 0) exit(1);
    fail("\"%s\" not found", subject);
  }
  run_hooks("exec.prestop");
  bool is_used = end(&jail);
  if (verbosity > 0 || (verbosity == 0 && has_file)) printf("%s: removed\n", subject);
  run_hooks("exec.poststop");
  if (!has_file) return;
  bool is_whole = unmount_all(jail.path, is_used);
  if (!is_whole) exit(1);
}

int main(int count, char **words) {
  const char *path = NULL;
  bool wants_number = false;
  char what = 0;
  open_table();
  for (int option; (option = getopt(count, words, "+qivcrRf:")) != -1;) {
    if (option == 'q' || option == 'i') verbosity = -1;
    if (option == 'i') wants_number = true;
    else if (option == 'v') verbosity = 1;
    else if (option == 'f') path = optarg;
    else if (option == 'c' || option == 'r' || option == 'R') what = (char)option;
    else if (option != 'q') exit(1);
  }
  if (what == 0 || optind + 1 != count) {
    fprintf(stderr, "usage: jail [-qi] [-f file] -[crR] jail\n");
    return 1;
  }
  subject = words[optind];
  if (what == 'c') {
    if (path == NULL) path = "/etc/jail.conf";
    if (!read_configuration(path, subject)) fail("\"%s\" not found", subject);
    create(wants_number);
  } else {
    destroy(what == 'R' ? NULL : path);
  }
  return 0;
}
