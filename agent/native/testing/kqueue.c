// kqueue(2) on top of inotify(7). As there, unread events of a descriptor are merged; unlike there, a closed descriptor
// is not detected and may be reported once more.
#include <stdbool.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sys/event.h>

enum {
  DESCRIPTORS = 65536,
  MASK = IN_CREATE | IN_DELETE | IN_MOVE | IN_MODIFY | IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF,
};

/** Registration of a descriptor, with its pending events. Watches begin at 1. */
static struct {
  int watch;
  unsigned asked, due;
} listeners[DESCRIPTORS];
static int top;
/** Descriptors with pending events, in order of arrival. */
static int waiting[DESCRIPTORS], waiting_count;

int kqueue(void) {
  for (int fd = 0; fd < top; fd++) listeners[fd].watch = 0;
  waiting_count = 0;
  return inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
}

static int add(int queue, const struct kevent *change) {
  char link[32];
  int fd = (int)change->ident;
  if (fd >= DESCRIPTORS) return -1;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  int watch = inotify_add_watch(queue, link, MASK);
  if (watch < 0) return -1;
  listeners[fd].watch = watch;
  listeners[fd].asked = change->fflags;
  if (fd >= top) top = fd + 1;
  return 0;
}

static unsigned notes_of(int fd, const struct inotify_event *event) {
  struct stat status;
  if (event->mask & (IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO)) return NOTE_WRITE;
  // For an entry, which kqueue does not report.
  if (event->len > 0) return 0;
  if (event->mask & IN_MOVE_SELF) return NOTE_RENAME;
  if (event->mask & IN_DELETE_SELF) return NOTE_DELETE;
  if (event->mask & IN_MODIFY) return NOTE_WRITE;
  // While a descriptor is open, inotify reports the removal of the last name as a change of attributes.
  if (event->mask & IN_ATTRIB) return fstat(fd, &status) == 0 && status.st_nlink == 0 ? NOTE_DELETE : NOTE_ATTRIB;
  return 0;
}

static void note(const struct inotify_event *event) {
  for (int fd = 0; fd < top; fd++) {
    if (listeners[fd].watch != event->wd) continue;
    unsigned notes = notes_of(fd, event) & listeners[fd].asked;
    if (notes != 0 && listeners[fd].due == 0) waiting[waiting_count++] = fd;
    listeners[fd].due |= notes;
  }
}

static void read_all(int queue) {
  static _Alignas(struct inotify_event) char buffer[64 * 1024];
  ssize_t length;
  while ((length = read(queue, buffer, sizeof buffer)) > 0) {
    for (char *position = buffer; position < buffer + length;) {
      const struct inotify_event *event = (const struct inotify_event *)(void *)position;
      position += sizeof *event + event->len;
      note(event);
    }
  }
}

int kevent(int queue, const struct kevent *changes, int change_count, struct kevent *events, int event_count,
           const struct timespec *timeout) {
  (void)timeout;
  for (int index = 0; index < change_count; index++) {
    if (add(queue, &changes[index]) < 0) return -1;
  }
  if (event_count == 0) return 0;
  read_all(queue);
  int count = waiting_count < event_count ? waiting_count : event_count;
  for (int index = 0; index < count; index++) {
    int fd = waiting[index];
    EV_SET(&events[index], (uintptr_t)fd, EVFILT_VNODE, EV_CLEAR, listeners[fd].due, 0, NULL);
    listeners[fd].due = 0;
  }
  waiting_count -= count;
  for (int index = 0; index < waiting_count; index++) waiting[index] = waiting[index + count];
  return count;
}
