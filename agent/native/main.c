// The agent: starts programs, relays their data and works on files for the server at the other end of a socket. One
// thread and one loop, whose turn sends, waits, and handles events.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "aside.h"
#include "entry.h"
#include "launch.h"
#include "platform.h"
#include "shown.h"

enum {
  OUTGOING_BYTES = 512 * 1024,
  INCOMING_BYTES = HEADER_BYTES + PAYLOAD_LIMIT,
  BUCKETS = 1024,
  LAST_ROUNDS = 64,
  // A start waits until the program is executed; the server could be at work with those before.
  STARTS_PER_TURN = 4,
  READY_TURNS = 8,
  DESCRIPTORS_LIMIT = 3 * OBJECTS_LIMIT + 16,
};

enum role { ROLE_CONNECTION = -1, ROLE_LISTENER = -2, ROLE_ASIDE = -4, ROLE_SHOWN = -5 };

struct object *objects;
struct rlimit descriptor_limit;
uint64_t moment;
static struct object *buckets[BUCKETS];
static unsigned object_count;

static int connection = -1;
static int listener = -1;
static bool has_greeted;
static bool is_announcing;
static bool is_ending;

static uint8_t outgoing[OUTGOING_BYTES];
static size_t outgoing_start, outgoing_end;
static uint8_t incoming[INCOMING_BYTES];
static size_t incoming_start, incoming_end;

static struct pollfd polled[DESCRIPTORS_LIMIT];
static struct {
  struct object *owner;
  int role;
} polled_for[DESCRIPTORS_LIMIT];
static unsigned polled_count;

// --- objects

struct object *find_object(uint32_t id) {
  struct object *object = buckets[id % BUCKETS];
  while (object != NULL && (object->id != id || object->is_dead)) object = object->next_in_bucket;
  return object;
}

unsigned count_objects(const struct kind *kind) {
  unsigned count = 0;
  for (struct object *object = objects; object != NULL; object = object->next) count += object->kind == kind;
  return count;
}

void *add_object(size_t size, const struct kind *kind, uint32_t id) {
  if (object_count >= OBJECTS_LIMIT || count_objects(kind) >= kind->limit) {
    errno = EMFILE;
    return NULL;
  }
  struct object *object = calloc(1, size);
  if (object == NULL) return NULL;
  object->id = id;
  object->kind = kind;
  object->next = objects;
  objects = object;
  struct object **bucket = &buckets[id % BUCKETS];
  object->next_in_bucket = *bucket;
  *bucket = object;
  object_count++;
  return object;
}

static void free_object(struct object *object) {
  struct object **link = &buckets[object->id % BUCKETS];
  while (*link != object) link = &(*link)->next_in_bucket;
  *link = object->next_in_bucket;
  object->kind->free(object);
  object_count--;
  free(object);
}

static void sweep(void) {
  struct object **link = &objects;
  while (*link != NULL) {
    struct object *object = *link;
    if (!object->is_dead) {
      link = &object->next;
      continue;
    }
    *link = object->next;
    free_object(object);
  }
}

// --- the connection

bool is_connected(void) { return connection >= 0; }

size_t room(void) {
  if (outgoing_start > 0) {
    memmove(outgoing, outgoing + outgoing_start, outgoing_end - outgoing_start);
    outgoing_end -= outgoing_start;
    outgoing_start = 0;
  }
  return OUTGOING_BYTES - outgoing_end;
}

struct writer begin_frame(uint8_t type, uint32_t id) {
  // Frames without a connection are written and dropped.
  struct writer frame = {outgoing + outgoing_end, 0, OUTGOING_BYTES - outgoing_end, false};
  put_u32(&frame, 0);
  put_u8(&frame, type);
  put_u32(&frame, id);
  return frame;
}

void finish_frame(struct writer *frame) {
  if (connection < 0) return;
  // Requests are handled only while their answers fit, so an oversized frame is a bug.
  if (frame->is_full || frame->length > HEADER_BYTES + PAYLOAD_LIMIT) abort();
  struct writer length = {frame->bytes, 0, 4, false};
  put_u32(&length, (uint32_t)frame->length - 4);
  outgoing_end += frame->length;
}

void send_empty(uint8_t type, uint32_t id) {
  struct writer frame = begin_frame(type, id);
  finish_frame(&frame);
}

void send_u32(uint8_t type, uint32_t id, uint32_t value) {
  struct writer frame = begin_frame(type, id);
  put_u32(&frame, value);
  finish_frame(&frame);
}

static const char *error_name(int error) {
  switch (error) {
#define NAME(value) \
  case value:       \
    return #value;
    NAME(EPERM) NAME(ENOENT) NAME(ESRCH) NAME(EINTR) NAME(EIO) NAME(ENXIO) NAME(E2BIG) NAME(ENOEXEC) NAME(EBADF)
    NAME(ECHILD) NAME(EAGAIN) NAME(ENOMEM) NAME(EACCES) NAME(EFAULT) NAME(EBUSY) NAME(EEXIST) NAME(EXDEV)
    NAME(ENODEV) NAME(ENOTDIR) NAME(EISDIR) NAME(EINVAL) NAME(ENFILE) NAME(EMFILE) NAME(ENOTTY) NAME(ETXTBSY)
    NAME(EFBIG) NAME(ENOSPC) NAME(EROFS) NAME(EMLINK) NAME(EPIPE) NAME(ENAMETOOLONG) NAME(ENOSYS)
    NAME(ENOTEMPTY) NAME(ELOOP) NAME(EOVERFLOW) NAME(ENOTSUP) NAME(ECONNREFUSED) NAME(ECONNRESET)
    NAME(ETIMEDOUT) NAME(EHOSTUNREACH) NAME(ENETUNREACH) NAME(EADDRNOTAVAIL) NAME(EAFNOSUPPORT) NAME(EDQUOT)
    NAME(ESTALE) NAME(EILSEQ) NAME(EREMOTE)
#undef NAME
  }
  return "EUNKNOWN";
}

void send_error(uint32_t id, uint8_t stage, int error, const char *detail) {
  struct writer frame = begin_frame(REPLY_ERROR, id);
  put_u8(&frame, stage);
  put_text(&frame, error_name(error));
  put_text_n(&frame, detail, strnlen(detail, PATH_LIMIT));
  finish_frame(&frame);
}

static void disconnect(void) {
  close(connection);
  connection = -1;
  has_greeted = is_announcing = false;
  outgoing_start = outgoing_end = incoming_start = incoming_end = 0;
  for (struct object *object = objects; object != NULL; object = object->next) {
    if (object->kind == &process_kind) process_disconnected(object);
    else object->is_dead = true;
  }
}

void break_connection(const char *why) {
  if (connection < 0) return;
  fprintf(stderr, "coppice-agent: %s\n", why);
  disconnect();
}

static void flush(void) {
  while (connection >= 0 && outgoing_start < outgoing_end) {
    ssize_t sent = send(connection, outgoing + outgoing_start, outgoing_end - outgoing_start, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) disconnect();
      return;
    }
    outgoing_start += (size_t)sent;
  }
  outgoing_start = outgoing_end = 0;
}

static void connected(int fd) {
  if (connection >= 0) disconnect();
  connection = fd;
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  struct writer frame = begin_frame(REPLY_HELLO, 0);
  put_u32(&frame, PROTOCOL_MAGIC);
  put_u16(&frame, PROTOCOL_VERSION);
  put_u32(&frame, (uint32_t)getpid());
  put_u32(&frame, FEATURE_SHARE);
  finish_frame(&frame);
}

// --- requests

static void send_account(const struct request *request) {
  static struct account account;
  if (!account_by_name(request->name, &account)) return send_error(request->id, STAGE_USER, ENOENT, "");
  struct writer frame = begin_frame(REPLY_ACCOUNT, request->id);
  put_text(&frame, account.name);
  put_u32(&frame, account.uid);
  put_u32(&frame, account.gid);
  put_text(&frame, account.home);
  put_text(&frame, account.shell);
  put_u16(&frame, account.group_count);
  for (unsigned index = 0; index < account.group_count; index++) put_u32(&frame, account.groups[index]);
  finish_frame(&frame);
}

static void start_object(const struct request *request) {
  if (find_object(request->id) != NULL) return break_connection("an id was used twice");
  // Files and ports would be those of the host side.
  if (entry_is_set() && request->type != SPAWN) return send_error(request->id, STAGE_REQUEST, ENOTSUP, "");
  switch (request->type) {
    case SPAWN:
      process_spawn(request->id, &request->spawn);
      break;
    case ACCOUNT:
      send_account(request);
      break;
    case DIAL:
      dial_request(request->id, request);
      break;
    default:
      files_request(request->id, request);
  }
}

/** Handles a request about an object. An object that has just ended is no protocol error. */
static void use_object(const struct request *request) {
  struct object *object = find_object(request->id);
  // The server forgets the id when it receives this.
  if (request->type == RELEASE) send_empty(REPLY_RELEASED, request->id);
  if (object == NULL) {
    if (request->type == READ) send_error(request->id, STAGE_FILE, EBADF, "");
    return;
  }
  const struct kind *kind = object->kind;
  bool is_process = kind == &process_kind;
  switch (request->type) {
    case INPUT:
      if (kind->input) kind->input(object, (const uint8_t *)request->data.bytes, request->data.length);
      break;
    case INPUT_END:
      if (kind->end_input) kind->end_input(object);
      break;
    case CREDIT:
      if (object->credit < INT64_MAX / 2) object->credit += request->credit;
      if (is_process) process_paid(object, request->credit);
      break;
    case SIGNAL:
      if (is_process) process_signal(object, request->scope, request->name);
      break;
    case RESIZE:
      if (is_process) process_resize(object, request->columns, request->rows);
      break;
    case DISCARD:
      if (is_process) process_discard(object);
      break;
    case SHARE:
      send_u32(REPLY_SHARED, request->id, (uint32_t)(kind->share ? kind->share(object) : -1));
      break;
    case RELEASE:
      if (is_process) process_release(object);
      else object->is_dead = true;
      break;
    case READ:
      files_read(object, request->offset, request->length);
      break;
  }
}

static void handle(const struct request *request) {
  if (!has_greeted) {
    if (request->type != HELLO || request->magic != PROTOCOL_MAGIC || request->version != PROTOCOL_VERSION) {
      break_connection("the server speaks another protocol");
      return;
    }
    has_greeted = true;
    return;
  }
  switch (request->type) {
    case HELLO:
      break_connection("a second greeting");
      break;
    case PROCESSES:
      is_announcing = true;
      break;
    case END:
      is_ending = true;
      break;
    default:
      // All but READ are numbered from ACCOUNT on.
      if (request->type == SPAWN || (request->type >= ACCOUNT && request->type != READ)) start_object(request);
      else use_object(request);
  }
}

/** Handles the received frames while their answers fit and programs may be started. */
static void handle_frames(unsigned starts_left) {
  static struct request request;
  moment++;
  while (connection >= 0 && !is_announcing && room() >= REPLY_BYTES + HEADER_BYTES) {
    uint8_t *frame = incoming + incoming_start;
    int32_t length = frame_length(frame, incoming_end - incoming_start);
    if (length == FRAME_INCOMPLETE) break;
    if (length == FRAME_BROKEN) return break_connection("a broken frame");
    incoming_start += (size_t)length;
    if (entry_is_set() && frame[4] == SPAWN) entry_keep(frame + HEADER_BYTES, (uint32_t)length - HEADER_BYTES);
    if (!parse_request(frame[4], load_u32(frame + 5), frame + HEADER_BYTES, (uint32_t)length - HEADER_BYTES, &request)) {
      break_connection("a broken request");
      return;
    }
    handle(&request);
    if (request.type == SPAWN && --starts_left == 0) break;
  }
  if (incoming_start == incoming_end) incoming_start = incoming_end = 0;
}

bool has_more_requests(void) {
  return frame_length(incoming + incoming_start, incoming_end - incoming_start) != FRAME_INCOMPLETE;
}

/** @return true if bytes arrived. */
static bool receive(void) {
  if (incoming_start > 0) {
    memmove(incoming, incoming + incoming_start, incoming_end - incoming_start);
    incoming_end -= incoming_start;
    incoming_start = 0;
  }
  ssize_t count = recv(connection, incoming + incoming_end, INCOMING_BYTES - incoming_end, 0);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (count <= 0) {
    disconnect();
    return false;
  }
  incoming_end += (size_t)count;
  return true;
}

static void accept_connection(void) {
  int fd = accept(listener, NULL, NULL);
  if (fd < 0) return;
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  // Frames that the last server still sent count, such as those that confirm an end.
  for (unsigned round = 0; round < LAST_ROUNDS && connection >= 0 && receive(); round++) {
    handle_frames(UINT_MAX);
    flush();
  }
  connected(fd);
}

// --- the loop

void watch_descriptor(int fd, short events, struct object *owner, int role) {
  if (polled_count == DESCRIPTORS_LIMIT) return;
  polled[polled_count] = (struct pollfd){fd, events, 0};
  polled_for[polled_count].owner = owner;
  polled_for[polled_count].role = role;
  polled_count++;
}

/** Names every process to a new server. */
static void announce(void) {
  if (!is_announcing || connection < 0) return;
  for (struct object *object = objects; object != NULL; object = object->next) {
    if (object->kind == &process_kind && !object->is_dead && !process_announce(object)) return;
  }
  if (room() < REPLY_BYTES) return;
  send_empty(REPLY_PROCESSES_END, 0);
  is_announcing = false;
}

/** Sends what is due. @return true if there is more to do at once. */
static bool pump(void) {
  bool has_more = false;
  // First, because a process must be named before its other frames.
  announce();
  for (struct object *object = objects; object != NULL; object = object->next) {
    if (!object->is_dead && object->kind->pump) has_more |= object->kind->pump(object);
  }
  return has_more;
}

/** Collects the descriptors to wait for. Sends nothing, because it is decided here whether the connection is waited for.
 * @return true if there is more to do at once. */
static bool prepare(void) {
  polled_count = 0;
  if (listener >= 0) watch_descriptor(listener, POLLIN, NULL, ROLE_LISTENER);
  if (shown_descriptor() >= 0) watch_descriptor(shown_descriptor(), POLLIN, NULL, ROLE_SHOWN);
  if (aside_descriptor() >= 0 && room() >= REPLY_BYTES) watch_descriptor(aside_descriptor(), POLLIN, NULL, ROLE_ASIDE);
  if (connection >= 0) {
    bool can_receive = incoming_end - incoming_start < INCOMING_BYTES && !has_more_requests();
    short events = (short)((can_receive ? POLLIN : 0) | (outgoing_end > outgoing_start ? POLLOUT : 0));
    watch_descriptor(connection, events, NULL, ROLE_CONNECTION);
  }
  bool has_more = watch_prepare();
  for (struct object *object = objects; object != NULL; object = object->next) {
    if (object->kind->prepare) object->kind->prepare(object);
  }
  return has_more;
}

static void dispatch(void) {
  for (unsigned index = 0; index < polled_count; index++) {
    short events = polled[index].revents;
    struct object *owner = polled_for[index].owner;
    int role = polled_for[index].role;
    if (events == 0) continue;
    if (owner == NULL) {
      if (role == ROLE_LISTENER) accept_connection();
      else if (role == ROLE_CHANGES) watch_ready();
      else if (role == ROLE_SHOWN) shown_ready();
      else if (connection == polled[index].fd && events & (POLLIN | POLLHUP | POLLERR)) receive();
    } else if (!owner->is_dead) {
      owner->kind->ready(owner, role, events);
    }
  }
}

static volatile sig_atomic_t is_looked_at;
static volatile sig_atomic_t may_have_children_ended = 1;

static void on_signal(int signal) {
  if (signal == SIGIO) is_looked_at = 1;
  else if (signal == SIGCHLD) may_have_children_ended = 1;
}

/** The first process of a sandbox ends when its host shuts down, which otherwise waits for it; a sender inside has a pid. */
static void on_shutdown(int signal, siginfo_t *info, void *context) {
  (void)context;
  if (info->si_code == SI_USER && info->si_pid == 0) _exit(128 + signal);
}

static void set_up_signals(sigset_t *while_waiting) {
  sigset_t blocked;
  sigfillset(&blocked);
  sigemptyset(while_waiting);
  for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
  // A handler, not SIG_IGN, which programs would inherit.
  struct sigaction action = {.sa_handler = on_signal};
  sigaction(SIGCHLD, &action, NULL);
  sigaction(SIGPIPE, &action, NULL);
  sigaction(SIGIO, &action, NULL);
  struct sigaction shutdown = {.sa_sigaction = on_shutdown, .sa_flags = SA_SIGINFO};
  if (getpid() == 1) sigaction(SIGTERM, &shutdown, NULL);
  sigprocmask(SIG_SETMASK, &blocked, NULL);
}

static _Noreturn void fail(const char *message) {
  fprintf(stderr, "coppice-agent: %s\n", message);
  exit(64);
}

static void turn(const sigset_t *while_waiting) {
  static unsigned ready_turns;
  bool has_more = pump();
  flush();
  // Sending may reveal that the server is gone, after which no event could end the wait.
  if (listener < 0 && connection < 0) return;
  sweep();
  has_more |= prepare();
  bool is_stuck = room() < REPLY_BYTES + HEADER_BYTES || is_announcing;
  has_more |= connection >= 0 && has_more_requests() && !is_stuck;
  struct timespec at_once = {0, 0};
  // Signals are unblocked only here, so that they interrupt nothing else.
  int count = ppoll(polled, polled_count, has_more ? &at_once : NULL, while_waiting);
  // A lowered resource limit makes poll(2) fail for every call: do not retry forever.
  if (count < 0 && errno == EINVAL) fail("cannot wait");
  // While a descriptor is ready, ppoll(2) returns without a look at signals: one that always is would keep them away.
  if (count > 0 && ++ready_turns % READY_TURNS == 0) ppoll(NULL, 0, &at_once, while_waiting);
  if (is_looked_at) {
    is_looked_at = 0;
    shown_renew();
  }
  if (may_have_children_ended) {
    may_have_children_ended = 0;
    process_reap();
  }
  if (count > 0) dispatch();
  handle_frames(STARTS_PER_TURN);
  watch_follow();
}

/** Moves a descriptor away from stdin, stdout and stderr, which are opened if closed. */
static int claim_descriptor(const char *text) {
  char *end;
  long number = strtol(text, &end, 10);
  if (*text == 0 || *end != 0 || number < 0 || number > 1 << 20) fail("the descriptor is no number");
  int fd = fcntl((int)number, F_DUPFD_CLOEXEC, 10);
  if (fd < 0) fail("the descriptor is not open");
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) fail("/dev/null cannot be opened");
  for (int standard = 0; standard < 3; standard++) {
    if (standard == number || fcntl(standard, F_GETFD) < 0) dup2(null, standard);
  }
  if (number > 2) close((int)number);
  if (null > 2) close(null);
  return fd;
}

static void raise_descriptor_limit(void) {
  if (getrlimit(RLIMIT_NOFILE, &descriptor_limit) < 0) return;
  struct rlimit limit = descriptor_limit;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

/** Runs a program with a listening socket as descriptor 3: mostly a command that runs the agent inside a jail. */
static _Noreturn void bind_and_run(const char *path, char **words) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) fail("the path of the socket is too long");
  strcpy(address.sun_path, path);
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  // Only its owner may connect, from the start.
  mode_t mask = umask(0177);
  unlink(path);
  if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 16) < 0) fail("cannot listen");
  umask(mask);
  if (fd != 3 && dup2(fd, 3) < 0) fail("cannot listen");
  if (fd != 3) close(fd);
  execvp(words[0], words);
  fail("the program cannot be run");
}

int main(int count, char **words) {
  const char *root = "/";
  if (count >= 4 && strcmp(words[1], "bind") == 0) bind_and_run(words[2], words + 3);
  if (count == 3 && strcmp(words[1], "launch") == 0) {
    int fd = claim_descriptor(words[2]);
    if (chdir("/") < 0 || !open_root(root)) fail("the root cannot be opened");
    launch_from(fd);
  }
  if (count >= 5 && strcmp(words[1], "--root") == 0) {
    root = words[2];
    words += 2;
    count -= 2;
  }
  if (count >= 5 && strcmp(words[1], "--shown") == 0) {
    shown_open(atoi(words[2]));
    words += 2;
    count -= 2;
  }
  if (count < 3 || (strcmp(words[1], "pair") != 0 && strcmp(words[1], "listen") != 0)) {
    fail("usage: coppice-agent [--root DIRECTORY] [--shown DESCRIPTOR] pair|listen DESCRIPTOR [PROGRAM [WORD ...]], "
         "launch DESCRIPTOR, or bind PATH PROGRAM [WORD ...]");
  }
  if (count > 3) entry_set(words + 3);
  bool is_listening = strcmp(words[1], "listen") == 0;
  int fd = claim_descriptor(words[2]);
  platform_harden();
  platform_close_from(fd + 1);
  raise_descriptor_limit();
  umask(0);
  if (chdir("/") < 0 || !open_root(root)) fail("the root cannot be opened");
  sigset_t while_waiting;
  set_up_signals(&while_waiting);
  if (is_listening) {
    listener = fd;
    // A client that disconnects before the accept must not block the loop.
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  } else {
    connected(fd);
  }
  while (!is_ending && (is_listening || connection >= 0)) turn(&while_waiting);
  process_kill_all();
  return 0;
}
