// The launcher: one long-lived process on the host that creates sandboxes, ends them and removes their files, so that
// the server never forks. It reads requests from a socket and answers each when it is done.
//
//   frame    u32 length of the rest, u32 number, u8 operation or status, then texts: u32 length, bytes
//   lock     directory                        locks the directory for this server; status 1 when another has it
//   launch   directory, control group of version 2 or empty, first id of the sandbox on this host or empty,
//            instruction words …
//            answers with the pid and the start time of the first process
//   end      pid, start time, thaw file       answers when every process of the sandbox is gone
//   remove   path …                           removes trees of any depth
//   run      input, program, argument …       answers with the exit code and the output
//   start    directory, program, argument …   starts a program that outlives this process; answers as `launch`
//   confine  first id of the user namespace on this host or empty, instruction words …
//            runs the program of the instructions in namespaces that end with it, or with this process; answers as `run`
//   kill     number                           kills what a request to `confine` started
//   disk     operation, directory …           answers as `answer_about_disk`
//   connect  pid, start time, port            opens a connection to a loopback port of a sandbox by its first process, and
//            passes it through the channel of Node.js, with the request's number as the message
//   prepare  record, text, count, control group …, then file and text …
//            writes the record of a sandbox, then makes its control groups, then writes the other texts; a file with `-`
//            before its path may be missing
//
// All numbers are little-endian; texts contain no NUL. Ends with the server: at end of file.
// Optional arguments are those of `enter_user_namespace`.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "connect.h"
#include "disk.h"
#include "instructions.h"
#include "process-start.h"
#include "user-namespace.h"

enum { LOCK = 1, LAUNCH, END, REMOVE, RUN, DISK, START, CONFINE, KILL, CONNECT, PREPARE };
enum { FRAME_LIMIT = 1 << 20, WORDS_LIMIT = 4096, JOBS_LIMIT = 512, TEXT_LIMIT = 16384, SERVER = 3 };
enum { LOG_LIMIT = 65536 };

struct job {
  uint32_t number;
  uint8_t operation;
  pid_t pid;
  char start[32];
  // Pipe from the child; for `end` a pidfd, which is readable when the process is gone.
  int fd;
  bool is_open, has_ended;
  int status;
  size_t length;
  char text[TEXT_LIMIT];
};

static struct job *jobs[JOBS_LIMIT];
static unsigned job_count;

// Reason why every request fails; empty when requests can succeed.
static char failure[256];

static uint8_t frame[FRAME_LIMIT + 1];
static size_t frame_length;

static _Noreturn void stop(const char *why) {
  fprintf(stderr, "coppice-launcher: %s\n", why);
  exit(1);
}

static uint32_t load(const uint8_t *bytes) {
  return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static void store(uint8_t *bytes, uint32_t value) {
  for (unsigned index = 0; index < 4; index++) bytes[index] = (uint8_t)(value >> 8 * index);
}

static void send_all(const uint8_t *bytes, size_t length) {
  while (length > 0) {
    ssize_t sent = send(SERVER, bytes, length, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) exit(0);
    bytes += sent;
    length -= (size_t)sent;
  }
}

/** @param texts NULL-terminated */
static void reply(uint32_t number, int status, ...) {
  static uint8_t bytes[2 * TEXT_LIMIT];
  size_t length = 9;
  va_list texts;
  va_start(texts, status);
  for (const char *text; (text = va_arg(texts, const char *)) != NULL;) {
    size_t count = strlen(text);
    if (count > TEXT_LIMIT - 64) count = TEXT_LIMIT - 64;
    store(bytes + length, (uint32_t)count);
    memcpy(bytes + length + 4, text, count);
    length += 4 + count;
  }
  va_end(texts);
  store(bytes, (uint32_t)length - 4);
  store(bytes + 4, number);
  bytes[8] = (uint8_t)status;
  send_all(bytes, length);
}

// --- processes

static struct job *add_job(uint32_t number, uint8_t operation) {
  struct job *job = calloc(1, sizeof *job);
  if (job == NULL) stop("out of memory");
  job->number = number;
  job->operation = operation;
  job->fd = -1;
  jobs[job_count++] = job;
  return job;
}

static void drop_job(struct job *job) {
  for (unsigned index = 0; index < job_count; index++) {
    if (jobs[index] == job) jobs[index] = jobs[--job_count];
  }
  if (job->fd >= 0) close(job->fd);
  free(job);
}

/** Answers that a job could not begin, for the reason in errno. */
static void refuse(struct job *job) {
  reply(job->number, 1, strerror(errno), NULL);
  drop_job(job);
}

/** Ignores descriptors that were not opened, and keeps errno. */
static void close_all(const int *descriptors, unsigned count) {
  int error = errno;
  for (unsigned index = 0; index < count; index++) {
    if (descriptors[index] >= 0) close(descriptors[index]);
  }
  errno = error;
}

/**
 * Forks a child of a job and connects a pipe for its messages.
 * @param group control group of the child, or -1: a later move takes the kernel ten times as long.
 * @return as fork does, with the child's end of the pipe.
 */
static pid_t fork_for(struct job *job, uint64_t namespaces, int group, int *say) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) < 0) return -1;
  struct clone_args arguments = {.flags = namespaces, .exit_signal = SIGCHLD};
  if (group >= 0) {
    arguments.flags |= CLONE_INTO_CGROUP;
    arguments.cgroup = (uint64_t)group;
  }
  pid_t pid = (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
  if (pid == 0) {
    sigset_t none;
    sigemptyset(&none);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    close(SERVER);
    *say = ends[1];
    return 0;
  }
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    return -1;
  }
  job->pid = pid;
  job->fd = ends[0];
  job->is_open = true;
  return pid;
}

// --- launch

static bool write_file(int directory, const char *name, const char *text) {
  int fd = openat(directory, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  bool is_written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
  return close(fd) == 0 && is_written;
}

/** Creates the agent's listening socket, outside of the sandbox's root. */
static int listen_in(int directory) {
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  // Through the descriptor, because the path may be longer than sun_path.
  snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/agent.sock", directory);
  if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 16) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

/** Records the identity of a child, so that it can be found even after a crash of this process, and releases it. */
static void let_go(struct job *job, int directory, const char *record, int go) {
  char init[64];
  bool is_known = read_start(job->pid, job->start);
  snprintf(init, sizeof init, "%d %s\n", (int)job->pid, job->start);
  if (is_known && write_file(directory, record, init)) (void)!write(go, "", 1);
}

/** In a child: waits for `let_go`. */
static void wait_until_known(int go[2]) {
  char byte;
  close(go[1]);
  if (read(go[0], &byte, 1) != 1) _exit(FAILED_INSTRUCTION);
}

/** Maps the ids of a child that has its own user namespace. */
static bool map_child(struct job *job) {
  if (!is_in_user_namespace() || map_sandbox(job->pid)) return true;
  job->length = (size_t)snprintf(job->text, TEXT_LIMIT, "map ids: %s", strerror(errno));
  return false;
}

/** Makes the user namespace of a child whose first id on this host is not empty. @return -1 with errno when it cannot. */
static pid_t fork_into_namespaces(struct job *job, const char *first, int group, int *users, int *say) {
  if (first[0] != 0 && (*users = range_namespace(first)) < 0) return -1;
  // A user namespace brings its own network namespace later.
  unsigned long namespaces = *users < 0 ? NAMESPACES | CLONE_NEWNET : NAMESPACES;
  return fork_for(job, is_in_user_namespace() ? namespaces | CLONE_NEWUSER : namespaces, group, say);
}

static void launch(uint32_t number, const char **words, unsigned count) {
  struct job *job = add_job(number, LAUNCH);
  int go[2] = {-1, -1}, listener = -1, group = -1, say = -1, users = -1;
  int directory = open(words[0], O_PATH | O_DIRECTORY | O_CLOEXEC);
  bool is_ready = directory >= 0 && pipe2(go, O_CLOEXEC) == 0 && (listener = listen_in(directory)) >= 0;
  if (is_ready && words[1][0] != 0) is_ready = (group = open(words[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0;
  pid_t pid = is_ready ? fork_into_namespaces(job, words[2], group, &users, &say) : -1;
  if (pid == 0) {
    wait_until_known(go);
    follow_instructions(words + 3, count - 3, (struct given){listener, users, (id_t)strtoul(words[2], NULL, 10)}, say);
  }
  if (pid > 0 && map_child(job)) let_go(job, directory, "init", go[1]);
  close_all((int[]){go[0], go[1], listener, directory, group}, 5);
  if (pid < 0) refuse(job);
}

// --- confine, kill

static void confine(uint32_t number, const char **words, unsigned count) {
  struct job *job = add_job(number, CONFINE);
  int go[2] = {-1, -1}, say = -1, users = -1;
  pid_t pid = pipe2(go, O_CLOEXEC) < 0 ? -1 : fork_into_namespaces(job, words[0], -1, &users, &say);
  if (pid == 0) {
    wait_until_known(go);
    follow_instructions(words + 1, count - 1, (struct given){-1, users, (id_t)strtoul(words[0], NULL, 10)}, say);
  }
  if (pid > 0 && map_child(job)) (void)!write(go[1], "", 1);
  close_all(go, 2);
  if (pid < 0) refuse(job);
}

/** Does nothing when that has ended. */
static void kill_confined(uint32_t number, const char *asked) {
  for (unsigned index = 0; index < job_count; index++) {
    struct job *job = jobs[index];
    if (job->operation == CONFINE && job->number == strtoul(asked, NULL, 10) && !job->has_ended) kill(job->pid, SIGKILL);
  }
  reply(number, 0, NULL);
}

// --- start

/** Becomes a detached program, whose log file cannot grow without bound. */
static _Noreturn void become(const char **argv, int log, int say) {
  struct rlimit limit = {LOG_LIMIT, LOG_LIMIT};
  int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  signal(SIGXFSZ, SIG_IGN);
  if (null >= 0 && setsid() >= 0 && setrlimit(RLIMIT_FSIZE, &limit) == 0) {
    dup2(null, 0);
    dup2(log, 1);
    dup2(log, 2);
    execv(argv[0], (char **)(void *)argv);
  }
  dprintf(say, "%s: %s", argv[0], strerror(errno));
  _exit(127);
}

static void start(uint32_t number, const char **words, unsigned count) {
  struct job *job = add_job(number, START);
  int go[2] = {-1, -1}, say = -1, log = -1;
  int directory = open(words[0], O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) log = openat(directory, "log", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  pid_t pid = log < 0 || pipe2(go, O_CLOEXEC) < 0 ? -1 : fork_for(job, 0, -1, &say);
  if (pid == 0) {
    wait_until_known(go);
    words[count] = NULL;
    become(words + 1, log, say);
  }
  if (pid > 0) let_go(job, directory, "program", go[1]);
  close_all((int[]){go[0], go[1], log, directory}, 4);
  if (pid < 0) refuse(job);
}

// --- end

static void end(uint32_t number, const char **words) {
  char start[32];
  pid_t pid = (pid_t)strtol(words[0], NULL, 10);
  int fd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
  // Opened first: the descriptor refers to one process, whatever happens to its pid.
  if (fd < 0 || !read_start(pid, start) || strcmp(start, words[1]) != 0) {
    if (fd >= 0) close(fd);
    reply(number, 0, NULL);
    return;
  }
  struct job *job = add_job(number, END);
  job->fd = fd;
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
  if (words[2][0] == 0) return;
  // Killed processes in a version 1 freezer do not die before they are thawed.
  int thaw = open(words[2], O_WRONLY | O_CLOEXEC);
  if (thaw >= 0) {
    (void)!write(thaw, "THAWED", 6);
    close(thaw);
  }
}

// --- remove

/**
 * Removes the contents of a directory. Nested directories are first moved up into it, so that neither depth nor path
 * length matters. No other process may be able to change the tree.
 */
static bool empty_directory(int top) {
  unsigned moved = 0;
  for (;;) {
    int again = openat(top, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = again < 0 ? NULL : fdopendir(again);
    if (entries == NULL) return false;
    bool is_empty = true;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
      if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
      is_empty = false;
      if (unlinkat(top, entry->d_name, 0) == 0) continue;
      int inner = openat(top, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      DIR *children = inner < 0 ? NULL : fdopendir(inner);
      if (children == NULL) {
        closedir(entries);
        return false;
      }
      for (struct dirent *child; (child = readdir(children)) != NULL;) {
        if (strcmp(child->d_name, ".") == 0 || strcmp(child->d_name, "..") == 0) continue;
        if (unlinkat(inner, child->d_name, 0) == 0 || unlinkat(inner, child->d_name, AT_REMOVEDIR) == 0) continue;
        char name[32];
        do snprintf(name, sizeof name, "moved-%u", moved++);
        while (syscall(SYS_renameat2, inner, child->d_name, top, name, RENAME_NOREPLACE) < 0 && errno == EEXIST);
      }
      closedir(children);
      // A directory that is not empty is met again in the next round.
      if (unlinkat(top, entry->d_name, AT_REMOVEDIR) < 0 && errno != ENOTEMPTY) {
        closedir(entries);
        return false;
      }
    }
    closedir(entries);
    if (is_empty) return true;
  }
}

static bool remove_tree(const char *path) {
  if (unlink(path) == 0 || errno == ENOENT) return true;
  int top = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (top < 0) return false;
  bool is_empty = empty_directory(top);
  close(top);
  return is_empty && rmdir(path) == 0;
}

static _Noreturn void remove_trees(const char **words, unsigned count, int say) {
  for (unsigned index = 0; index < count; index++) {
    if (remove_tree(words[index])) continue;
    dprintf(say, "%s: %s", words[index], strerror(errno));
    _exit(1);
  }
  _exit(0);
}

/** Does work in a child: a tree takes time, and so may the journal of a file system. */
static void delegate(uint32_t number, uint8_t operation, const char **words, unsigned count) {
  int say = -1;
  struct job *job = add_job(number, operation);
  pid_t pid = fork_for(job, 0, -1, &say);
  if (pid < 0) return refuse(job);
  if (pid > 0) return;
  if (operation == REMOVE) remove_trees(words, count, say);
  if (operation == CONNECT) connect_inside(number, words, say);
  answer_about_disk(words, count, say);
}

// --- run

static void run(uint32_t number, const char **words, unsigned count) {
  int say = -1, input[2];
  struct job *job = add_job(number, RUN);
  size_t length = strlen(words[0]);
  pid_t pid = -1;
  // The socket takes the whole input at once; more would need a feeding loop.
  errno = E2BIG;
  if (length <= 65536 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, input) == 0) {
    pid = fork_for(job, 0, -1, &say);
    if (pid == 0) {
      setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 1);
      setenv("LC_ALL", "C", 1);
      dup2(input[1], 0);
      dup2(say, 1);
      dup2(say, 2);
      words[count] = NULL;
      execvp(words[1], (char **)(void *)(words + 1));
      dprintf(2, "%s: %s", words[1], strerror(errno));
      _exit(127);
    }
    if (pid > 0) (void)!send(input[0], words[0], length, MSG_NOSIGNAL);
    close_all(input, 2);
  }
  if (pid < 0) refuse(job);
}

// --- lock

static void lock(uint32_t number, const char *path) {
  // Stays open until this process ends, and only here: sandboxes close it.
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0) {
    reply(number, 1, errno == EWOULDBLOCK ? "another server uses it" : strerror(errno), NULL);
    if (fd >= 0) close(fd);
    return;
  }
  reply(number, 0, NULL);
}

// --- prepare

/** Replaces a file, so that readers, also after a crash, see the old text or the new. */
static bool replace_file(const char *path, const char *text) {
  char unfinished[PATH_MAX];
  int length = snprintf(unfinished, sizeof unfinished, "%s.new", path);
  errno = ENAMETOOLONG;
  if (length >= (int)sizeof unfinished || !write_file(AT_FDCWD, unfinished, text)) return false;
  return rename(unfinished, path) == 0;
}

static bool write_text(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t written = write(fd, text, strlen(text));
  int error = errno;
  close(fd);
  errno = error;
  return written >= 0;
}

/** Here and not in a child: the kernel does this in some microseconds, and flushes nothing to the disk. */
static void prepare(uint32_t number, const char **words, unsigned count) {
  unsigned groups = (unsigned)strtoul(words[2], NULL, 10), at = 3;
  if (groups > count - 3 || (count - 3 - groups) % 2 != 0) stop("an unknown request");
  const char *failed = replace_file(words[0], words[1]) ? NULL : words[0];
  mode_t mask = umask(022);
  for (; failed == NULL && at < groups + 3; at++) {
    if (mkdir(words[at], 0755) < 0) failed = words[at];
  }
  umask(mask);
  for (; failed == NULL && at < count; at += 2) {
    bool may_be_missing = words[at][0] == '-';
    const char *path = words[at] + may_be_missing;
    if (!write_text(path, words[at + 1]) && !(may_be_missing && errno == ENOENT)) failed = path;
  }
  if (failed == NULL) return reply(number, 0, NULL);
  char text[PATH_MAX + 64];
  snprintf(text, sizeof text, "%s: %s", failed, strerror(errno));
  reply(number, 1, text, NULL);
}

// --- the loop

static void handle(uint8_t *bytes, size_t length) {
  static const char *words[WORDS_LIMIT + 1];
  uint32_t number = load(bytes);
  unsigned count = 0;
  for (size_t at = 5; at < length;) {
    if (length - at < 4 || count == WORDS_LIMIT) stop("a broken request");
    size_t size = load(bytes + at);
    if (size > length - at - 4) stop("a broken request");
    // Moves the text over its length, to make room for the NUL.
    memmove(bytes + at, bytes + at + 4, size);
    bytes[at + size] = 0;
    words[count++] = (const char *)bytes + at;
    at += 4 + size;
  }
  uint8_t operation = bytes[4];
  if (failure[0] != 0) reply(number, 1, failure, NULL);
  else if (job_count == JOBS_LIMIT) reply(number, 1, "too many requests at one time", NULL);
  else if (operation == LOCK && count == 1) lock(number, words[0]);
  else if (operation == LAUNCH && count >= 4) launch(number, words, count);
  else if (operation == END && count == 3) end(number, words);
  else if (operation == CONNECT && count == 3 && !is_in_user_namespace() && connect_at_once(number, words))
    reply(number, 0, NULL);
  else if (operation == REMOVE || (operation == DISK && count >= 2) || (operation == CONNECT && count == 3))
    delegate(number, operation, words, count);
  else if (operation == RUN && count >= 2) run(number, words, count);
  else if (operation == START && count >= 2) start(number, words, count);
  else if (operation == CONFINE && count >= 2) confine(number, words, count);
  else if (operation == PREPARE && count >= 3) prepare(number, words, count);
  else if (operation == KILL && count == 1) kill_confined(number, words[0]);
  else stop("an unknown request");
}

static void receive(void) {
  ssize_t count = recv(SERVER, frame + frame_length, FRAME_LIMIT - frame_length, 0);
  if (count < 0 && errno == EINTR) return;
  if (count <= 0) exit(0);
  frame_length += (size_t)count;
  size_t at = 0;
  while (frame_length - at >= 4) {
    size_t length = load(frame + at);
    if (length < 5 || length > FRAME_LIMIT - 4) stop("a broken frame");
    if (frame_length - at - 4 < length) break;
    handle(frame + at + 4, length);
    at += 4 + length;
  }
  memmove(frame, frame + at, frame_length - at);
  frame_length -= at;
}

static void reap(void) {
  int status;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    for (unsigned index = 0; index < job_count; index++) {
      if (jobs[index]->pid != pid) continue;
      jobs[index]->has_ended = true;
      jobs[index]->status = status;
    }
  }
}

static void listen_to(struct job *job) {
  char spare[4096];
  size_t left = TEXT_LIMIT - 1 - job->length;
  ssize_t count = read(job->fd, left > 0 ? job->text + job->length : spare, left > 0 ? left : sizeof spare);
  if (count < 0 && errno == EINTR) return;
  if (count > 0) job->length += left > 0 ? (size_t)count : 0;
  else job->is_open = false;
}

/** @return true when the job has nothing to wait for. */
static bool settle(struct job *job) {
  if (job->operation == END) {
    if (!job->has_ended) return false;
    reply(job->number, 0, NULL);
    return true;
  }
  if (job->is_open) return false;
  bool is_launched = job->operation == LAUNCH && !job->has_ended;
  // The pipe closes by itself when a program takes over. The lifetime of a started program does not matter here.
  if (job->length == 0 && (is_launched || job->operation == START)) {
    char pid[32];
    snprintf(pid, sizeof pid, "%d", (int)job->pid);
    reply(job->number, 0, pid, job->start, NULL);
    return true;
  }
  if (!job->has_ended) return false;
  bool is_good = WIFEXITED(job->status) && WEXITSTATUS(job->status) == 0;
  char status[32];
  snprintf(status, sizeof status, "%d", WIFEXITED(job->status) ? WEXITSTATUS(job->status) : -WTERMSIG(job->status));
  bool has_run = job->operation == RUN || (job->operation == CONFINE && atoi(status) != FAILED_INSTRUCTION);
  if (has_run) reply(job->number, 0, status, job->text, NULL);
  else if (is_good) reply(job->number, 0, job->text, NULL);
  else reply(job->number, 1, job->length > 0 ? job->text : "ended before it was complete", NULL);
  return true;
}

static void on_child(int number) { (void)number; }

int main(int argument_count, char **arguments) {
  sigset_t blocked, none;
  struct sigaction action = {.sa_handler = on_child};
  sigemptyset(&none);
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGCHLD);
  sigprocmask(SIG_BLOCK, &blocked, NULL);
  sigaction(SIGCHLD, &action, NULL);
  // Signals of a terminal are for the server, which ends this process by closing the socket.
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  umask(077);
  fcntl(SERVER, F_SETFD, FD_CLOEXEC);
  fcntl(CHANNEL, F_SETFD, FD_CLOEXEC);
  // Node.js names its channel there, for children of its own kind.
  clearenv();
  if (argument_count == 1 + USER_NAMESPACE_WORDS) {
    const char *what = enter_user_namespace(arguments + 1);
    if (what != NULL) snprintf(failure, sizeof failure, "cannot %s: %s", what, strerror(errno));
  }
  for (;;) {
    struct pollfd polled[JOBS_LIMIT + 2] = {{SERVER, POLLIN, 0}};
    struct job *waiting[JOBS_LIMIT];
    unsigned count = job_count;
    for (unsigned index = 0; index < count; index++) {
      waiting[index] = jobs[index];
      bool is_silent = jobs[index]->operation == END ? jobs[index]->has_ended : !jobs[index]->is_open;
      polled[index + 1] = (struct pollfd){is_silent ? -1 : jobs[index]->fd, POLLIN, 0};
    }
    polled[count + 1] = (struct pollfd){CHANNEL, POLLIN, 0};
    if (ppoll(polled, count + 2, NULL, &none) < 0) {
      for (unsigned index = 0; index <= count + 1; index++) polled[index].revents = 0;
    }
    if (polled[count + 1].revents != 0) drain_channel();
    for (unsigned index = 0; index < count; index++) {
      if (polled[index + 1].revents == 0) continue;
      if (waiting[index]->operation == END) waiting[index]->has_ended = true;
      else listen_to(waiting[index]);
    }
    reap();
    for (unsigned index = 0; index < count; index++) {
      if (settle(waiting[index])) drop_job(waiting[index]);
    }
    if (polled[0].revents != 0) receive();
  }
}
