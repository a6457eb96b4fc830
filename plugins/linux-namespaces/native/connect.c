#define _GNU_SOURCE
#include "connect.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "process-start.h"

// A handshake on loopback is over with connect(2), or soon. A longer one, which waits for room in the backlog, goes on in
// the server.
enum { HANDSHAKE_MS = 100, SOCKET_BUFFER_BYTES = 262144 };

/** Connects to a loopback port of this network. @return the connection, or -1 with errno: EINPROGRESS without a wait. */
static int connect_here(in_port_t port, int family, int wait_ms) {
  struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = port, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  const void *address = family == AF_INET ? (const void *)&four : (const void *)&six;
  int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  // Limits what a program inside can make the kernel hold: these bytes are not counted in its control group.
  int bytes = SOCKET_BUFFER_BYTES, error = 0;
  socklen_t size = sizeof error;
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  if (connect(fd, address, family == AF_INET ? sizeof four : sizeof six) == 0) return fd;
  error = errno;
  if (error == EINPROGRESS) {
    struct pollfd waited = {fd, POLLOUT, 0};
    bool is_over = poll(&waited, 1, wait_ms) > 0;
    if (!is_over && wait_ms > 0) return fd;
    if (is_over && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0) return fd;
  }
  close(fd);
  errno = error;
  return -1;
}

/** Passes a connection as child_process of Node.js does. */
static bool pass_handle(uint32_t number, int fd) {
  char line[128];
  int length = snprintf(line, sizeof line, "{\"cmd\":\"NODE_HANDLE\",\"type\":\"net.Socket\",\"msg\":%u}\n", number);
  union {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof fd)];
  } control = {0};
  struct iovec data = {line, (size_t)length};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return sendmsg(CHANNEL, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == length;
}

/** Connects in the network of a process, and stays there. @return as `connect_here` */
static int enter_and_connect(const char **words, int wait_ms) {
  char path[64], start[32];
  pid_t pid = (pid_t)strtol(words[0], NULL, 10);
  in_port_t port = htons((uint16_t)strtoul(words[2], NULL, 10));
  snprintf(path, sizeof path, "/proc/%d/ns/net", (int)pid);
  int fd = -1, network = open(path, O_RDONLY | O_CLOEXEC);
  // Read after the network was opened: whatever happens to the pid now, it is that of this process.
  bool is_known = network >= 0 && read_start(pid, start) && strcmp(start, words[1]) == 0;
  if (is_known && setns(network, CLONE_NEWNET) == 0) {
    fd = connect_here(port, AF_INET, wait_ms);
    // The error of the first address is more useful than the lack of a second one.
    int error = errno;
    if (fd < 0 && error != EINPROGRESS) fd = connect_here(port, AF_INET6, wait_ms);
    errno = error;
  } else if (!is_known) errno = ESRCH;
  int error = errno;
  if (network >= 0) close(network);
  errno = error;
  return fd;
}

_Noreturn void connect_inside(uint32_t number, const char **words, int say) {
  int fd = enter_and_connect(words, HANDSHAKE_MS);
  if (fd >= 0 && pass_handle(number, fd)) _exit(0);
  dprintf(say, "%s", strerror(errno));
  _exit(1);
}

bool connect_at_once(uint32_t number, const char **words) {
  static int outside = -1;
  if (outside < 0) outside = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  if (outside < 0) return false;
  int fd = enter_and_connect(words, 0);
  // Whatever this process did next would be done to the sandbox's network.
  if (setns(outside, CLONE_NEWNET) < 0) _exit(1);
  if (fd < 0) return false;
  bool is_passed = pass_handle(number, fd);
  close(fd);
  return is_passed;
}

void drain_channel(void) {
  char spare[4096];
  ssize_t count;
  while ((count = recv(CHANNEL, spare, sizeof spare, MSG_DONTWAIT)) > 0) continue;
  if (count == 0) exit(0);
}
