// TCP connections to ports inside: on 127.0.0.1, otherwise on ::1.
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"

struct dial {
  struct object object;
  struct sink input;
  struct source output;
  uint16_t port;
  bool is_open, has_tried_six;
  bool is_shut;
  bool is_end_sent, is_input_closed_due;
};

static int start_connecting(uint16_t port, bool is_six) {
  struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  int fd = socket(is_six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const void *address = is_six ? (const void *)&six : (const void *)&four;
  if (connect(fd, address, is_six ? sizeof six : sizeof four) == 0 || errno == EINPROGRESS) return fd;
  int error = errno;
  close(fd);
  errno = error;
  return -1;
}

static void set_descriptor(struct dial *dial, int fd) { dial->input.fd = dial->output.fd = fd; }

static void refuse(struct dial *dial, int error) {
  send_error(dial->object.id, STAGE_DIAL, error, "");
  dial->object.is_dead = true;
}

static void try_six(struct dial *dial, int error) {
  if (dial->input.fd >= 0) close(dial->input.fd);
  set_descriptor(dial, -1);
  if (!dial->has_tried_six) set_descriptor(dial, start_connecting(dial->port, true));
  dial->has_tried_six = true;
  // The error of the first address is more useful than the lack of a second one.
  if (dial->input.fd < 0) refuse(dial, error);
}

void dial_request(uint32_t id, const struct request *request) {
  if (request->port == 0) return send_error(id, STAGE_DIAL, EINVAL, "");
  struct dial *dial = add_object(sizeof *dial, &dial_kind, id);
  if (dial == NULL) return send_error(id, STAGE_DIAL, EMFILE, "");
  dial->input = (struct sink){.fd = -1, .window = INPUT_WINDOW_BYTES};
  dial->output = (struct source){.fd = -1, .frame = REPLY_OUTPUT};
  dial->object.credit = request->credit;
  dial->port = request->port;
  set_descriptor(dial, start_connecting(dial->port, false));
  if (dial->input.fd < 0) try_six(dial, errno);
}

static void dial_prepare(struct object *object) {
  struct dial *dial = (struct dial *)object;
  if (object->is_dead || dial->input.fd < 0) return;
  bool is_reading = dial->is_open && !dial->is_end_sent && can_relay(object);
  bool is_writing = !dial->is_open || dial->input.length > 0;
  short events = (short)((is_reading ? POLLIN : 0) | (is_writing ? POLLOUT : 0));
  // With an empty event mask, poll(2) would still report a reset socket and wake the loop forever.
  if (events != 0) watch_descriptor(dial->input.fd, events, object, 0);
}

static void finish_connecting(struct dial *dial) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(dial->input.fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0) error = errno;
  if (error != 0) return try_six(dial, error);
  dial->is_open = true;
  send_empty(REPLY_DONE, dial->object.id);
}

static void flush_input(struct dial *dial) {
  if (dial->is_shut) return;
  bool is_taken = sink_flush(&dial->input);
  if (!is_taken) {
    dial->is_input_closed_due = true;
    dial->input.length = 0;
  }
  if (!is_taken || (dial->input.is_ending && dial->input.length == 0)) {
    shutdown(dial->input.fd, SHUT_WR);
    dial->is_shut = true;
  }
}

static void dial_ready(struct object *object, int role, short events) {
  struct dial *dial = (struct dial *)object;
  (void)role;
  if (!dial->is_open) return finish_connecting(dial);
  if (dial->input.length > 0 && events & (POLLOUT | POLLERR | POLLHUP)) flush_input(dial);
  if (dial->is_end_sent || !can_relay(object) || !(events & (POLLIN | POLLERR | POLLHUP))) return;
  if (relay_source(&dial->output, object, NULL) >= 0) return;
  send_empty(REPLY_OUTPUT_END, object->id);
  dial->is_end_sent = true;
}

static bool dial_pump(struct object *object) {
  struct dial *dial = (struct dial *)object;
  if (!dial->is_open || room() < REPLY_BYTES) return false;
  sink_acknowledge(&dial->input, object->id);
  if (dial->is_input_closed_due) {
    send_empty(REPLY_INPUT_CLOSED, object->id);
    dial->is_input_closed_due = false;
  }
  return false;
}

static void dial_input(struct object *object, const uint8_t *data, uint32_t length) {
  struct dial *dial = (struct dial *)object;
  if (!dial->is_open || dial->is_shut || dial->input.is_ending) return;
  if (length > dial->input.window) return break_connection("more input than was asked for");
  dial->input.window -= length;
  if (sink_put(&dial->input, data, length)) return;
  dial->is_input_closed_due = true;
  dial->is_shut = true;
}

static void dial_end_input(struct object *object) {
  struct dial *dial = (struct dial *)object;
  if (!dial->is_open || dial->input.is_ending) return;
  dial->input.is_ending = true;
  flush_input(dial);
}

static void dial_free(struct object *object) {
  // Both directions share one descriptor.
  sink_close(&((struct dial *)object)->input);
}

const struct kind dial_kind = {
    1024,
    .free = dial_free,
    .input = dial_input,
    .end_input = dial_end_input,
    .pump = dial_pump,
    .prepare = dial_prepare,
    .ready = dial_ready,
};
