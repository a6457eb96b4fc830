// kqueue(2) as the agent uses it: EVFILT_VNODE with EV_ADD and EV_CLEAR. Implemented in kqueue.c with inotify(7).
// Source: sys/kern/vfs_subr.c (filt_vfsvnode). Not here: other filters and flags.
#ifndef COPPICE_TESTING_EVENT_H
#define COPPICE_TESTING_EVENT_H

#include <stdint.h>
#include <time.h>

#define EVFILT_VNODE (-4)
#define EV_ADD 0x0001
#define EV_CLEAR 0x0020
#define NOTE_DELETE 0x0001
#define NOTE_WRITE 0x0002
#define NOTE_EXTEND 0x0004
#define NOTE_ATTRIB 0x0008
#define NOTE_RENAME 0x0020
#define NOTE_REVOKE 0x0040

struct kevent {
  uintptr_t ident;
  short filter;
  unsigned short flags;
  unsigned int fflags;
  int64_t data;
  void *udata;
};

#define EV_SET(event, id, kind, how, notes, value, context) \
  (*(event) = (struct kevent){                              \
       .ident = (id), .filter = (kind), .flags = (how), .fflags = (notes), .data = (value), .udata = (context)})

int kqueue(void);
int kevent(int queue, const struct kevent *changes, int change_count, struct kevent *events, int event_count,
           const struct timespec *timeout);

#endif
