// Starts programs of a sandbox through another program, such as jexec(8).
#include "entry.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launch.h"
#include "platform.h"

extern char **environ;

static char **entry_words;
static uint8_t kept[PAYLOAD_LIMIT];
static uint32_t kept_length;

void entry_set(char **words) { entry_words = words; }

bool entry_is_set(void) { return entry_words != NULL; }

void entry_keep(const uint8_t *payload, uint32_t length) {
  memcpy(kept, payload, length);
  kept_length = length;
}

/** Signals the end of the record, once all of it is written. */
static void end_record(struct entry *entry) {
  if (entry->record.length > 0 || entry->record.is_ending) return;
  entry->record.is_ending = true;
  shutdown(entry->record.fd, SHUT_WR);
}

struct entry *entry_open(int *far) {
  int ends[2];
  struct entry *entry = calloc(1, sizeof *entry);
  if (entry == NULL) return NULL;
  entry->terminal = -1;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) {
    free(entry);
    return NULL;
  }
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  entry->record.fd = ends[0];
  *far = ends[1];
  if (sink_put(&entry->record, kept, kept_length)) {
    end_record(entry);
    return entry;
  }
  close(ends[1]);
  entry_free(entry);
  errno = ENOMEM;
  return NULL;
}

void entry_free(struct entry *entry) {
  sink_close(&entry->record);
  if (entry->terminal >= 0) close(entry->terminal);
  free(entry);
}

void entry_run(int far) {
  if (far == 3) fcntl(far, F_SETFD, 0);
  else if (dup2(far, 3) < 0) return;
  platform_close_from(4);
  setrlimit(RLIMIT_NOFILE, &descriptor_limit);
  execve(entry_words[0], entry_words, environ);
}

void entry_prepare(struct entry *entry, struct object *owner, int role) {
  if (entry->is_over) return;
  watch_descriptor(entry->record.fd, (short)(POLLIN | (entry->record.length > 0 ? POLLOUT : 0)), owner, role);
}

/** Keeps the first received descriptor and closes all others. */
static void take_descriptors(struct entry *entry, struct msghdr *message) {
  for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL; header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t index = 0; index < count; index++) {
      int fd;
      memcpy(&fd, CMSG_DATA(header) + index * sizeof fd, sizeof fd);
      if (entry->terminal < 0) entry->terminal = fd;
      else close(fd);
    }
  }
}

/** @return true if there may be more. */
static bool take_report(struct entry *entry) {
  uint8_t waste[64];
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr aligned;
  } control;
  size_t left = sizeof entry->report - entry->length;
  struct iovec part = {left > 0 ? entry->report + entry->length : waste, left > 0 ? left : sizeof waste};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
  ssize_t count = recvmsg(entry->record.fd, &message, MSG_CMSG_CLOEXEC);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (count >= 0) take_descriptors(entry, &message);
  entry->is_over = count <= 0;
  if (count > 0 && left > 0) entry->length += (uint32_t)count;
  return count > 0;
}

void entry_move(struct entry *entry) {
  // A program that does not read its record reports why, or just ends.
  if (!sink_flush(&entry->record)) entry->record.length = 0;
  end_record(entry);
  // A few at a time: an endless report must not block other objects.
  for (unsigned round = 0; round < 4 && take_report(entry); round++) continue;
}

uint8_t entry_outcome(const struct entry *entry, uint32_t *value, struct text *detail) {
  const uint8_t *report = entry->report;
  uint32_t length = entry->length;
  *detail = (struct text){"", 0};
  *value = ESRCH;
  if (length < LAUNCH_REPORT_BYTES) return STAGE_ENTRY;
  *value = load_u32(report + 1);
  if (report[0] == LAUNCH_READY && length >= 2 * LAUNCH_REPORT_BYTES) {
    report += LAUNCH_REPORT_BYTES;
    length -= LAUNCH_REPORT_BYTES;
    *value = load_u32(report + 1);
  }
  if (report[0] == LAUNCH_READY) return 0;
  *detail = (struct text){(const char *)report + LAUNCH_REPORT_BYTES, length - LAUNCH_REPORT_BYTES};
  return report[0];
}
