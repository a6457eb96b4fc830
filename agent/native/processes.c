// Programs: their start, streams and end.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "agent.h"
#include "aside.h"
#include "entry.h"
#include "launch.h"
#include "platform.h"

enum role { ROLE_INPUT, ROLE_OUTPUT, ROLE_ERROR_OUTPUT, ROLE_ENTRY };

// More than the capacity of a pipe: limit for reading the output of a killed process, while others may go on writing.
enum { LEFT_BYTES = 1024 * 1024 };
enum { KILL_ROUNDS = 2000 };

struct process {
  struct object object;
  pid_t pid;
  // Pid in its own pid namespace or jail.
  uint32_t number;
  // State of a start through another program (see entry.h); NULL without one and after the start.
  struct entry *entry;
  struct sink input;
  // A duplicate of its descriptor that was shared with the server; 0 for none.
  int shared;
  struct source output, error_output;
  struct kept kept;
  uint32_t left;
  int status;
  bool is_launched_aside;
  bool has_terminal;
  bool was_killed;
  bool is_discarded;
  bool has_exited, is_exit_sent;
  bool is_end_sent;
  bool is_input_closed_due;
  bool is_announced;
  bool is_released;
  uint16_t label_length;
  char *label;
};

static const struct {
  const char *name;
  int number;
} signals[] = {
    {"SIGHUP", SIGHUP},     {"SIGINT", SIGINT},   {"SIGQUIT", SIGQUIT}, {"SIGILL", SIGILL},   {"SIGTRAP", SIGTRAP},
    {"SIGABRT", SIGABRT},   {"SIGBUS", SIGBUS},   {"SIGFPE", SIGFPE},   {"SIGKILL", SIGKILL}, {"SIGUSR1", SIGUSR1},
    {"SIGSEGV", SIGSEGV},   {"SIGUSR2", SIGUSR2}, {"SIGPIPE", SIGPIPE}, {"SIGALRM", SIGALRM}, {"SIGTERM", SIGTERM},
    {"SIGCHLD", SIGCHLD},   {"SIGCONT", SIGCONT}, {"SIGSTOP", SIGSTOP}, {"SIGTSTP", SIGTSTP}, {"SIGTTIN", SIGTTIN},
    {"SIGTTOU", SIGTTOU},   {"SIGURG", SIGURG},   {"SIGXCPU", SIGXCPU}, {"SIGXFSZ", SIGXFSZ}, {"SIGVTALRM", SIGVTALRM},
    {"SIGPROF", SIGPROF},   {"SIGIO", SIGIO},     {"SIGSYS", SIGSYS},   {"SIGWINCH", SIGWINCH},
#ifdef SIGPWR
    {"SIGPWR", SIGPWR},
#endif
#ifdef SIGSTKFLT
    {"SIGSTKFLT", SIGSTKFLT},
#endif
#ifdef SIGEMT
    {"SIGEMT", SIGEMT},
#endif
#ifdef SIGINFO
    {"SIGINFO", SIGINFO},
#endif
};
enum { SIGNAL_COUNT = sizeof signals / sizeof signals[0] };

static int signal_number(struct text name) {
  for (unsigned index = 0; index < SIGNAL_COUNT; index++) {
    const char *known = signals[index].name;
    if (strlen(known) == name.length && memcmp(known, name.bytes, name.length) == 0) return signals[index].number;
  }
  return -1;
}

static const char *signal_name(int number) {
  for (unsigned index = 0; index < SIGNAL_COUNT; index++) {
    if (signals[index].number == number) return signals[index].name;
  }
  return "";
}

// --- starting

/** @param owner account that may reopen them, as /dev/stdout; NULL if not known yet. @return 0 or an errno. */
static int open_pipes(struct streams *streams, bool has_input, const struct account *owner) {
  for (unsigned index = 0; index < 3; index++) {
    int ends[2];
    if (index == 0 && !has_input) {
      streams->far[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
      if (streams->far[0] < 0) return errno;
      continue;
    }
    if (pipe2(ends, O_CLOEXEC) < 0) return errno;
    // They work even if the owner cannot be changed.
    if (owner != NULL && fchown(ends[0], owner->uid, (gid_t)-1) < 0) errno = 0;
    streams->near[index] = ends[index == 0];
    streams->far[index] = ends[index != 0];
    // Only this end: programs do not expect theirs to be non-blocking.
    fcntl(streams->near[index], F_SETFL, O_NONBLOCK);
  }
  return 0;
}

static int open_streams(struct streams *streams, const struct spawn_request *request, const struct account *account) {
  bool has_terminal = request->flags & SPAWN_TERMINAL;
  // The terminal is created where the program runs; until then it has the pipes to the program between.
  if (entry_is_set()) return open_pipes(streams, request->flags & SPAWN_INPUT && !has_terminal, NULL);
  if (has_terminal) return open_terminal(streams, request, account);
  return open_pipes(streams, request->flags & SPAWN_INPUT,
                    request->identity.kind == IDENTITY_SELF ? NULL : account);
}

static bool keep_label(struct process *process, struct text label) {
  if (label.length == 0) return true;
  process->label = malloc(label.length);
  if (process->label == NULL) return false;
  memcpy(process->label, label.bytes, label.length);
  process->label_length = (uint16_t)label.length;
  return true;
}

/** Reports the result of a launch. @param is_awaited by a server. */
static void finish_launch(struct process *process, const struct launch *launch, bool is_awaited) {
  uint32_t id = process->object.id;
  if (launch->error == 0) {
    process->pid = launch->pid;
    process->number = (uint32_t)launch->pid;
    process->is_announced = is_awaited;
    if (process->entry != NULL) process->entry->is_awaited = true;
    else if (is_awaited) send_u32(REPLY_STARTED, id, process->number);
    return;
  }
  process->object.is_dead = true;
  if (launch->pid > 0 && !process->has_exited) waitpid(launch->pid, NULL, 0);
  if (is_awaited) send_error(id, launch->stage, launch->error, launch->stage == STAGE_RESOURCES ? "" : launch->directory);
}

/** Takes the result of a launch by the second thread. @param is_awaited by a server. @return false while there is none. */
static bool finish_launch_aside(struct process *process, bool is_awaited) {
  const struct launch *launch = aside_launched();
  if (launch == NULL) return false;
  process->is_launched_aside = false;
  close_all((int[]){launch->input, launch->output, launch->error_output});
  finish_launch(process, launch, is_awaited && !process->is_released);
  return true;
}

void process_spawn(uint32_t id, const struct spawn_request *request) {
  static struct account account;
  static struct launch launch;
  struct streams streams = {{-1, -1, -1}, {-1, -1, -1}};
  bool has_terminal = request->flags & SPAWN_TERMINAL;
  int way = -1;
  if (!entry_is_set() && resolve_identity(&request->identity, &account) != 0) {
    return send_error(id, STAGE_USER, ENOENT, "");
  }
  if (count_objects(&process_kind) >= process_kind.limit) return send_error(id, STAGE_RESOURCES, EAGAIN, "");

  int error = open_streams(&streams, request, &account);
  struct entry *entry = error == 0 && entry_is_set() ? entry_open(&way) : NULL;
  if (error == 0 && entry_is_set() && entry == NULL) error = errno;
  struct process *process = error ? NULL : add_object(sizeof *process, &process_kind, id);
  if (process != NULL) {
    process->entry = entry;
    process->input = (struct sink){.fd = streams.near[0], .window = INPUT_WINDOW_BYTES};
    process->output = (struct source){.fd = streams.near[1], .frame = REPLY_OUTPUT};
    process->error_output = (struct source){.fd = streams.near[2], .frame = REPLY_ERROR_OUTPUT};
  }
  if (process == NULL || !keep_label(process, request->label)) {
    if (error == 0) error = errno;
    if (process != NULL) {
      process->object.is_dead = true;
    } else {
      close_all(streams.near);
      if (entry != NULL) entry_free(entry);
    }
    close_all(streams.far);
    if (way >= 0) close(way);
    return send_error(id, has_terminal ? STAGE_TERMINAL : STAGE_RESOURCES, error, "");
  }
  process->object.credit = request->credit;
  process->kept = (struct kept){.is_on = request->flags & SPAWN_KEEPS_OUTPUT, .is_granted = true};
  process->has_terminal = has_terminal;

  launch = (struct launch){
      .request = request,
      .account = &account,
      .directory = request->directory.length > 0 ? request->directory.bytes : account.home,
      .input = streams.far[0],
      .output = streams.far[1],
      .error_output = streams.far[2],
      .report = -1,
      .terminal = -1,
      .changes_identity = changes_identity(request, &account),
  };
  if (entry == NULL && has_more_requests() && aside_launch(&launch)) {
    process->is_launched_aside = true;
    return;
  }
  launch_child(&launch, way);
  close_all(streams.far);
  if (way >= 0) close(way);
  finish_launch(process, &launch, true);
}

/** Takes over the terminal that was created where the program runs. @return false without one. */
static bool take_terminal(struct process *process) {
  struct entry *entry = process->entry;
  struct stat status;
  source_close(&process->output);
  source_close(&process->error_output);
  if (entry->terminal < 0 || fstat(entry->terminal, &status) < 0 || !S_ISCHR(status.st_mode)) return false;
  fcntl(entry->terminal, F_SETFL, fcntl(entry->terminal, F_GETFL) | O_NONBLOCK);
  process->input.fd = fcntl(entry->terminal, F_DUPFD_CLOEXEC, 3);
  process->output.fd = entry->terminal;
  entry->terminal = -1;
  return process->input.fd >= 0;
}

/** Error output of the program between, when it started none. */
static const char *error_output(const struct process *process) {
  static char text[512];
  ssize_t count = read(process->error_output.fd, text, sizeof text - 1);
  text[count > 0 ? count : 0] = 0;
  text[strcspn(text, "\n")] = 0;
  return text;
}

/** Reports the start of a program through another one, once its result is known. */
static void finish_start(struct process *process) {
  struct entry *entry = process->entry;
  uint32_t id = process->object.id, value;
  struct text detail;
  // A process that holds the other end open must not delay the end.
  if (process->has_exited) entry_move(entry);
  if (!entry->is_over && !process->has_exited) return;
  if (entry->is_awaited && room() < REPLY_BYTES) return;
  uint8_t stage = entry_outcome(entry, &value, &detail);
  // Its exit shows whether it could not enter or was killed meanwhile.
  if (stage == STAGE_ENTRY && !process->has_exited) return;
  bool was_killed_on_way = stage == STAGE_ENTRY && WIFSIGNALED(process->status);
  if (was_killed_on_way) {
    stage = 0;
    value = process->number;
  }
  bool is_awaited = entry->is_awaited;
  const char *reason = stage == STAGE_ENTRY ? error_output(process) : "";
  static char text[PATH_LIMIT + 1];
  if (detail.length > 0) {
    snprintf(text, sizeof text, "%.*s", (int)detail.length, detail.bytes);
    reason = text;
  }
  if (stage == 0 && process->has_terminal && !was_killed_on_way && !take_terminal(process)) {
    stage = STAGE_TERMINAL;
    value = ENXIO;
  }
  entry_free(entry);
  process->entry = NULL;
  if (stage == 0) {
    process->number = value;
    if (is_awaited) send_u32(REPLY_STARTED, id, value);
    return;
  }
  if (!process->has_exited) kill(-process->pid, SIGKILL);
  // A server that found it during the start learns the result from its end.
  if (!is_awaited) return;
  process->object.is_dead = true;
  send_error(id, stage, (int)value, reason);
}

// --- talking

static bool has_output(const struct process *process) {
  return process->output.fd >= 0 || process->error_output.fd >= 0;
}

/**
 * True while only bytes already in the pipes count. A terminal is hung up when its program ends: a process that still
 * has it open can write nothing more, but delays its end.
 */
static bool is_draining(const struct process *process) {
  return process->has_exited && (process->was_killed || process->has_terminal);
}

static void end_output(struct process *process) {
  source_close(&process->output);
  source_close(&process->error_output);
}

/** Discards unwanted output. Answers as `relay_source` does. */
static int drop(struct source *source) {
  static uint8_t waste[CHUNK_BYTES];
  ssize_t count = read(source->fd, waste, sizeof waste);
  if (count > 0) return 1;
  return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? 0 : -1;
}

static void relay(struct process *process, struct source *source) {
  if (source->fd < 0) return;
  int64_t before = process->object.credit;
  // Nothing may be read now, for lack of credit or room: it is not known whether the pipe is empty.
  if (!process->is_discarded && (!can_relay(&process->object) || kept_is_due(&process->kept))) return;
  int moved = process->is_discarded ? drop(source) : relay_source(source, &process->object, &process->kept);
  if (moved < 0 || (moved == 0 && is_draining(process))) source_close(source);
  if (moved <= 0) return;
  uint32_t cost = process->is_discarded ? CHUNK_BYTES : (uint32_t)(before - process->object.credit);
  process->left = process->left > cost ? process->left - cost : 0;
}

static void close_input(struct process *process, bool is_told) {
  if (process->input.fd < 0) return;
  sink_close(&process->input);
  process->is_input_closed_due = is_told;
}

static void close_shared(struct process *process) {
  if (process->shared > 0) close(process->shared);
  process->shared = 0;
}

static void flush_input(struct process *process) {
  if (process->input.fd < 0) return;
  if (!sink_flush(&process->input)) {
    close_input(process, true);
    return;
  }
  if (process->input.length > 0 || !process->input.is_ending) return;
  close_input(process, false);
}

static void process_input(struct object *object, const uint8_t *data, uint32_t length) {
  struct process *process = (struct process *)object;
  struct sink *input = &process->input;
  if (input->fd < 0 || input->is_ending) return;
  if (length > input->window) return break_connection("more input than was asked for");
  input->window -= length;
  if (!sink_put(input, data, length)) close_input(process, true);
}

static void process_end_input(struct object *object) {
  struct process *process = (struct process *)object;
  struct sink *input = &process->input;
  if (input->fd < 0 || input->is_ending) return;
  if (process->has_terminal) {
    // A terminal has no end of file, but a control character for it.
    struct termios settings;
    uint8_t end = 4;
    if (tcgetattr(process->input.fd, &settings) == 0) end = settings.c_cc[VEOF];
    if (input->length < INPUT_WINDOW_BYTES) sink_put(input, &end, 1);
    if (input->taken > 0) input->taken--;
  }
  input->is_ending = true;
  close_shared(process);
  flush_input(process);
}

/** A duplicate, because the program may close its input before the server has taken this. */
static int process_share(struct object *object) {
  struct process *process = (struct process *)object;
  const struct sink *input = &process->input;
  // Bytes that wait here come first.
  if (input->fd < 0 || input->is_ending || input->length > 0 || process->has_terminal || process->shared > 0) return -1;
  int fd = fcntl(input->fd, F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return -1;
  platform_widen_pipe(fd, SHARED_PIPE_BYTES);
  return process->shared = fd;
}

void process_paid(struct object *object, uint32_t bytes) { kept_pay(&((struct process *)object)->kept, bytes); }

void process_discard(struct object *object) {
  struct process *process = (struct process *)object;
  process->is_discarded = true;
  kept_free(&process->kept);
}

void process_signal(struct object *object, uint8_t scope, struct text name) {
  struct process *process = (struct process *)object;
  int number = signal_number(name);
  int error = 0;
  // After it was reaped, its pid may be reused.
  if (process->has_exited || process->pid == 0) error = ESRCH;
  else if (number < 0) error = EINVAL;
  else if (kill(scope == 1 ? -process->pid : process->pid, number) < 0) error = errno;
  if (error == 0 && (number == SIGKILL || number == SIGTERM)) process->was_killed = true;
  struct writer frame = begin_frame(REPLY_SIGNALLED, object->id);
  put_text(&frame, error == 0 ? "" : error == ESRCH ? "ESRCH" : error == EPERM ? "EPERM" : "EINVAL");
  finish_frame(&frame);
}

void process_resize(struct object *object, uint16_t columns, uint16_t rows) {
  struct process *process = (struct process *)object;
  struct winsize size = {.ws_row = rows, .ws_col = columns};
  if (process->has_terminal && process->output.fd >= 0) ioctl(process->output.fd, TIOCSWINSZ, &size);
}

static void process_prepare(struct object *object) {
  struct process *process = (struct process *)object;
  if (object->is_dead || process->is_launched_aside) return;
  if (process->entry != NULL) return entry_prepare(process->entry, object, ROLE_ENTRY);
  // With no data, POLLERR still reports that the reader is gone; terminals do not support it.
  if (process->input.length > 0) watch_descriptor(process->input.fd, POLLOUT, object, ROLE_INPUT);
  if ((!can_relay(object) || kept_is_due(&process->kept)) && !process->is_discarded) return;
  if (process->output.fd >= 0) watch_descriptor(process->output.fd, POLLIN, object, ROLE_OUTPUT);
  if (process->error_output.fd >= 0) watch_descriptor(process->error_output.fd, POLLIN, object, ROLE_ERROR_OUTPUT);
}

static void process_ready(struct object *object, int role, short events) {
  struct process *process = (struct process *)object;
  (void)events;
  if (role == ROLE_ENTRY) entry_move(process->entry);
  else if (role == ROLE_INPUT) flush_input(process);
  else relay(process, role == ROLE_OUTPUT ? &process->output : &process->error_output);
}

static void tell_exit(struct process *process) {
  struct writer frame = begin_frame(REPLY_EXIT, process->object.id);
  bool is_signalled = WIFSIGNALED(process->status);
  put_u8(&frame, is_signalled);
  put_u8(&frame, (uint8_t)(is_signalled ? WTERMSIG(process->status) : WEXITSTATUS(process->status)));
  put_u8(&frame, is_signalled && WCOREDUMP(process->status));
  put_text(&frame, is_signalled ? signal_name(WTERMSIG(process->status)) : "");
  finish_frame(&frame);
  process->is_exit_sent = true;
}

static bool process_pump(struct object *object) {
  struct process *process = (struct process *)object;
  if (process->is_launched_aside && (room() < REPLY_BYTES || !finish_launch_aside(process, true))) return false;
  if (process->entry != NULL) finish_start(process);
  if (process->entry != NULL || object->is_dead) return false;
  if (is_draining(process) && has_output(process)) {
    if (process->left == 0) end_output(process);
    relay(process, &process->output);
    relay(process, &process->error_output);
  }
  if (process->is_released && process->has_exited && !has_output(process)) object->is_dead = true;
  if (!is_connected() || !process->is_announced || process->is_released || room() < REPLY_BYTES) return false;
  sink_acknowledge(&process->input, object->id);
  if (process->is_input_closed_due) {
    send_empty(REPLY_INPUT_CLOSED, object->id);
    process->is_input_closed_due = false;
  }
  if (process->has_exited && !process->is_exit_sent) tell_exit(process);
  while (kept_is_due(&process->kept) && kept_send(&process->kept, object)) {
  }
  if (kept_is_due(&process->kept)) return false;
  if (!has_output(process) && !process->is_end_sent) {
    send_empty(REPLY_OUTPUT_END, object->id);
    process->is_end_sent = true;
  }
  return is_draining(process) && has_output(process) && (process->is_discarded || can_relay(object));
}

// --- ending

/** 0 while it has none. */
static pid_t pid_of(const struct process *process) {
  return process->is_launched_aside ? aside_pid() : process->pid;
}

void process_reap(void) {
  int status;
  pid_t pid;
  // All children, including adopted orphans.
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
    struct object *object = objects;
    while (object != NULL && (object->kind != &process_kind || pid_of((struct process *)object) != pid ||
                              ((struct process *)object)->has_exited)) {
      object = object->next;
    }
    if (object == NULL) continue;
    struct process *process = (struct process *)object;
    process->status = status;
    process->has_exited = true;
    process->left = LEFT_BYTES;
  }
}

void process_release(struct object *object) {
  struct process *process = (struct process *)object;
  // A running process goes on alone, and is forgotten when it and its output have ended.
  process->is_discarded = process->is_released = true;
  kept_free(&process->kept);
}

void process_disconnected(struct object *object) {
  struct process *process = (struct process *)object;
  if (process->is_launched_aside) {
    aside_wait();
    finish_launch_aside(process, false);
  }
  object->credit = 0;
  kept_rewind(&process->kept);
  if (process->entry != NULL) process->entry->is_awaited = false;
  process->is_exit_sent = process->is_end_sent = false;
  process->is_announced = false;
  close_shared(process);
  process->is_input_closed_due = process->input.fd < 0;
  // The next server counts from 0, so bytes that are still buffered reduce its window.
  process->input.taken = 0;
  process->input.window = INPUT_WINDOW_BYTES - process->input.length;
}

bool process_announce(struct object *object) {
  enum { HAS_INPUT = 1, HAS_TERMINAL = 2, HAS_EXITED = 4, IS_DISCARDED = 8, KEEPS_OUTPUT = 16 };
  struct process *process = (struct process *)object;
  if (process->is_announced || process->is_released) return true;
  if (room() < REPLY_BYTES) return false;
  struct writer frame = begin_frame(REPLY_PROCESS, object->id);
  put_u32(&frame, process->number);
  put_u8(&frame, (uint8_t)((process->input.fd >= 0 && !process->input.is_ending ? HAS_INPUT : 0) |
                           (process->has_terminal ? HAS_TERMINAL : 0) | (process->has_exited ? HAS_EXITED : 0) |
                           (process->is_discarded ? IS_DISCARDED : 0) | (process->kept.is_on ? KEEPS_OUTPUT : 0)));
  put_u32(&frame, process->input.window);
  put_text_n(&frame, process->label ? process->label : "", process->label_length);
  if (process->kept.is_on) put_u64(&frame, process->kept.from);
  finish_frame(&frame);
  process->is_announced = true;
  return true;
}

void process_kill_all(void) {
  aside_wait();
  for (struct object *object = objects; object != NULL; object = object->next) {
    struct process *process = (struct process *)object;
    if (object->kind == &process_kind && !process->has_exited && pid_of(process) > 0) kill(-pid_of(process), SIGKILL);
  }
  // The end of a namespace's first process ends all others in it.
  if (getpid() == 1) return;
  // Children of dead processes become children of this one, and so do those that another reaper hid: repeat until there
  // are none.
  for (unsigned round = 0; round < KILL_ROUNDS; round++) {
    platform_kill_children();
    pid_t pid;
    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) continue;
    if (pid < 0) return;
    usleep(1000);
  }
}

static void process_free(struct object *object) {
  struct process *process = (struct process *)object;
  if (process->entry != NULL) entry_free(process->entry);
  sink_close(&process->input);
  close_shared(process);
  end_output(process);
  kept_free(&process->kept);
  free(process->label);
}

const struct kind process_kind = {
    4096,
    .free = process_free,
    .input = process_input,
    .end_input = process_end_input,
    .pump = process_pump,
    .prepare = process_prepare,
    .ready = process_ready,
    .share = process_share,
};
