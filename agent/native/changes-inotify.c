// Directory changes with inotify(7), which FreeBSD has since 15.
#include "platform.h"
#ifdef COPPICE_HAS_INOTIFY
#include <sys/inotify.h>
#include <unistd.h>

int platform_changes_open(void) { return inotify_init1(IN_NONBLOCK | IN_CLOEXEC); }

int platform_changes_add(int changes, int directory) {
  return platform_inotify_add(changes, directory,
                              IN_CREATE | IN_MODIFY | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB | IN_ONLYDIR |
                                  IN_EXCL_UNLINK);
}

void platform_changes_remove(int changes, int watched) { inotify_rm_watch(changes, watched); }

static uint8_t kind_of(uint32_t mask) {
  if (mask & (IN_CREATE | IN_MOVED_TO)) return CHANGE_CREATE;
  if (mask & IN_MODIFY) return CHANGE_WRITE;
  if (mask & IN_DELETE) return CHANGE_REMOVE;
  if (mask & IN_MOVED_FROM) return CHANGE_RENAME;
  if (mask & IN_ATTRIB) return CHANGE_MODE;
  if (mask & IN_Q_OVERFLOW) return CHANGE_OVERFLOW;
  return mask & IN_IGNORED ? CHANGE_GONE : 0;
}

bool platform_changes_read(int changes, void (*on_change)(const struct change *change)) {
  static _Alignas(struct inotify_event) char buffer[64 * 1024];
  ssize_t length = read(changes, buffer, sizeof buffer);
  for (char *position = buffer; length > 0 && position < buffer + length;) {
    const struct inotify_event *event = (const struct inotify_event *)(void *)position;
    position += sizeof *event + event->len;
    struct change change = {
        .directory = event->wd,
        .kind = kind_of(event->mask),
        .is_directory = event->mask & IN_ISDIR,
        .cookie = event->mask & (IN_MOVED_FROM | IN_MOVED_TO) ? event->cookie : 0,
        .name = event->len > 0 ? event->name : "",
    };
    if (change.kind != 0) on_change(&change);
  }
  return length > 0;
}
#endif
