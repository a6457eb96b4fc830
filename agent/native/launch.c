// The last steps before a program runs, in the process that becomes it: the child of an agent, or a process that
// another program took into a jail.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"
#include "entry.h"
#include "launch.h"
#include "platform.h"

enum { DEFAULT_MASK = 022 };

// In the order of the protocol.
static const int resources[] = {RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_AS,    RLIMIT_CPU,
                                RLIMIT_FSIZE,  RLIMIT_CORE,  RLIMIT_STACK, RLIMIT_DATA};
enum { RESOURCE_COUNT = sizeof resources / sizeof resources[0] };

/** Reports to the waiting agent; includes the terminal when the program is about to run. */
static void report(const struct launch *launch, uint8_t stage, uint32_t value) {
  uint8_t bytes[LAUNCH_REPORT_BYTES + PATH_LIMIT];
  struct writer writer = {bytes, 0, sizeof bytes, false};
  put_u8(&writer, stage);
  put_u32(&writer, value);
  if (stage == STAGE_DIRECTORY) put_bytes(&writer, launch->directory, strnlen(launch->directory, PATH_LIMIT));
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr aligned;
  } control = {{0}};
  struct iovec part = {bytes, writer.length};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (stage == LAUNCH_READY && launch->terminal >= 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &launch->terminal, sizeof(int));
  }
  // The agent has closed the socket, so it no longer waits for this program.
  if (sendmsg(launch->report, &message, MSG_NOSIGNAL) < 0) _exit(127);
}

static _Noreturn void give_up(struct launch *launch, uint8_t stage, int error) {
  launch->error = error;
  if (launch->report >= 0) report(launch, stage, (uint32_t)launch->error);
  launch->stage = stage;
  _exit(127);
}

static _Noreturn void refuse(const char *program, const char *reason, int code) {
  // One write, so that it is not interleaved with others.
  char line[PATH_LIMIT + 64];
  int length = snprintf(line, sizeof line, "%.4000s: %s\n", program, reason);
  if (write(2, line, (size_t)length) < 0) _exit(code);
  _exit(code);
}

static _Noreturn void refuse_for(const char *program, int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      refuse(program, strchr(program, '/') ? "No such file or directory" : "command not found", 127);
    case ENOEXEC:
      refuse(program, "cannot execute: required file not found", 126);
    case ELOOP:
      refuse(program, "Too many levels of symbolic links", 126);
    case ETXTBSY:
      refuse(program, "Text file busy", 126);
    case EACCES:
    case EPERM:
      refuse(program, "Permission denied", 126);
    default:
      refuse(program, "cannot execute", 126);
  }
}

static const char *variable(char **variables, const char *name) {
  size_t length = strlen(name);
  for (; *variables != NULL; variables++) {
    if (strncmp(*variables, name, length) == 0 && (*variables)[length] == '=') return *variables + length + 1;
  }
  return NULL;
}

/** As execvp(3), runs a script without `#!` in the shell. */
static void execute(char *path, const struct spawn_request *request) {
  execve(path, request->arguments, request->variables);
  if (errno != ENOEXEC) return;
  char *program = request->arguments[0];
  char **words = request->arguments - 1;
  words[0] = "sh";
  words[1] = path;
  execve("/bin/sh", words, request->variables);
  words[1] = program;
}

static void search_and_execute(const struct spawn_request *request) {
  char *program = request->arguments[0];
  if (strchr(program, '/') != NULL) {
    execute(program, request);
    return;
  }
  char path[PATH_MAX];
  const char *folder = variable(request->variables, "PATH");
  if (folder == NULL) folder = "/usr/local/bin:/usr/bin:/bin";
  int error = ENOENT;
  while (*program != 0) {
    size_t length = strcspn(folder, ":");
    // An empty entry means the working directory.
    int written = snprintf(path, sizeof path, "%.*s%s%s", (int)length, folder, length > 0 ? "/" : "./", program);
    if (written < PATH_MAX) {
      execute(path, request);
      if (errno == E2BIG || errno == ENOMEM || errno == EAGAIN) return;
      if (errno != ENOENT && errno != ENOTDIR) error = errno;
    }
    if (folder[length] == 0) break;
    folder += length + 1;
  }
  errno = error;
}

static void set_limits(struct launch *launch) {
  const struct spawn_request *request = launch->request;
  if (launch->report < 0) setrlimit(RLIMIT_NOFILE, &descriptor_limit);
  for (unsigned index = 0; index < request->limit_count; index++) {
    const struct resource_limit *limit = &request->limits[index];
    struct rlimit value = {(rlim_t)limit->soft, (rlim_t)limit->hard};
    if (limit->resource >= RESOURCE_COUNT) give_up(launch, STAGE_LIMITS, EINVAL);
    if (setrlimit(resources[limit->resource], &value) < 0) give_up(launch, STAGE_LIMITS, errno);
  }
}

static void take_on_identity(struct launch *launch) {
  const struct account *account = launch->account;
  if (!launch->changes_identity) return;
  platform_name_session(account->name);
  if (platform_become(account->uid, account->gid, account->groups, account->group_count) < 0) {
    give_up(launch, STAGE_CREDENTIALS, errno);
  }
}

_Noreturn void run_launch(struct launch *launch) {
  const struct spawn_request *request = launch->request;
  bool has_terminal = request->flags & SPAWN_TERMINAL;
  // A process from another program leads a session already, or must stay in that program's session: signals to its
  // group are for both.
  if (launch->report < 0 || has_terminal) setsid();
  if (has_terminal && ioctl(launch->input, TIOCSCTTY, 0) < 0) give_up(launch, STAGE_TERMINAL, errno);
  if (dup2(launch->input, 0) < 0 || dup2(launch->output, 1) < 0 || dup2(launch->error_output, 2) < 0) {
    give_up(launch, STAGE_RESOURCES, errno);
  }
  if (launch->report < 0) platform_close_from(3);
  umask(request->mask == UINT16_MAX ? DEFAULT_MASK : request->mask & 0777);
  set_limits(launch);
  take_on_identity(launch);
  if (chdir(launch->directory) < 0) give_up(launch, STAGE_DIRECTORY, errno);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  if (launch->report >= 0) report(launch, LAUNCH_READY, (uint32_t)getpid());
  search_and_execute(request);
  if (errno == E2BIG || errno == ENOMEM || errno == EAGAIN) give_up(launch, STAGE_EXECUTE, errno);
  refuse_for(request->arguments[0], errno);
}

static _Noreturn void run_child(struct launch *launch, int way) {
  launch->pid = getpid();
  if (way < 0) run_launch(launch);
  setsid();
  sigset_t none;
  sigemptyset(&none);
  if (dup2(launch->input, 0) >= 0 && dup2(launch->output, 1) >= 0 && dup2(launch->error_output, 2) >= 0) {
    sigprocmask(SIG_SETMASK, &none, NULL);
    entry_run(way);
  }
  launch->error = errno;
  launch->stage = STAGE_ENTRY;
  _exit(127);
}

void launch_child(struct launch *launch, int way) {
  // The child borrows this process's memory and stack until it has called exec: a fork would copy the page tables for
  // nothing.
  pid_t pid = vfork();
  if (pid == 0) run_child(launch, way);
  if (pid > 0) return;
  launch->error = errno;
  launch->stage = STAGE_RESOURCES;
}

void close_all(int descriptors[3]) {
  for (unsigned index = 0; index < 3; index++) {
    if (descriptors[index] >= 0) close(descriptors[index]);
  }
}

int open_terminal(struct streams *streams, const struct spawn_request *request, const struct account *account) {
  int near = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (near < 0) return errno;
  streams->near[1] = near;
  if (grantpt(near) < 0 || unlockpt(near) < 0) return errno;
  const char *name = ptsname(near);
  int far = name ? open(name, O_RDWR | O_NOCTTY | O_CLOEXEC) : -1;
  if (far < 0) return errno;
  streams->far[0] = far;
  struct winsize size = {.ws_row = request->rows, .ws_col = request->columns};
  ioctl(far, TIOCSWINSZ, &size);
  // So that the program can open its terminal by name. It runs even if the owner cannot be changed.
  if (request->identity.kind != IDENTITY_SELF && fchown(far, account->uid, (gid_t)-1) < 0) errno = 0;
  fcntl(near, F_SETFL, fcntl(near, F_GETFL) | O_NONBLOCK);
  streams->near[0] = fcntl(near, F_DUPFD_CLOEXEC, 3);
  streams->far[1] = fcntl(far, F_DUPFD_CLOEXEC, 3);
  streams->far[2] = fcntl(far, F_DUPFD_CLOEXEC, 3);
  return streams->near[0] < 0 || streams->far[1] < 0 || streams->far[2] < 0 ? errno : 0;
}

bool changes_identity(const struct spawn_request *request, const struct account *account) {
  if (request->identity.kind == IDENTITY_SELF) return false;
  return geteuid() == 0 || account->uid != geteuid() || account->gid != getegid();
}

/** Reads up to the end of file. */
static uint32_t read_all(int fd, uint8_t *bytes, uint32_t size) {
  uint32_t length = 0;
  while (length < size) {
    ssize_t count = read(fd, bytes + length, size - length);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    length += (uint32_t)count;
  }
  return length;
}

_Noreturn void launch_from(int fd) {
  static uint8_t payload[PAYLOAD_LIMIT];
  static struct request request;
  static struct account account;
  static struct launch launch;
  struct streams streams = {{-1, -1, -1}, {0, 1, 2}};
  launch = (struct launch){.request = &request.spawn, .account = &account, .report = fd, .terminal = -1};
  uint32_t length = read_all(fd, payload, sizeof payload);
  if (!parse_request(SPAWN, 1, payload, length, &request)) give_up(&launch, STAGE_REQUEST, EINVAL);
  const struct spawn_request *spawn = &request.spawn;
  int error = resolve_identity(&spawn->identity, &account);
  if (error != 0) give_up(&launch, STAGE_USER, error);
  if (spawn->flags & SPAWN_TERMINAL) {
    error = open_terminal(&streams, spawn, &account);
    if (error != 0) give_up(&launch, STAGE_TERMINAL, error);
    launch.terminal = streams.near[1];
  } else if (spawn->identity.kind != IDENTITY_SELF) {
    // So that the program can reopen its streams, as /dev/stdout. It runs even if the owner cannot be changed.
    for (int stream = spawn->flags & SPAWN_INPUT ? 0 : 1; stream < 3; stream++) {
      if (fchown(stream, account.uid, (gid_t)-1) < 0) errno = 0;
    }
  }
  launch.directory = spawn->directory.length > 0 ? spawn->directory.bytes : account.home;
  launch.input = streams.far[0];
  launch.output = streams.far[1];
  launch.error_output = streams.far[2];
  launch.changes_identity = changes_identity(spawn, &account);
  run_launch(&launch);
}
