// A second thread for what would hold up the loop. A start lasts until the program is executed, and of many that come
// together two can be made at a time. The last close of a file frees its memory: 0.3 s for 1 GiB. ADR 0058.
#ifndef COPPICE_ASIDE_H
#define COPPICE_ASIDE_H

#include "launch.h"

/** Launches from copies of everything that a launch refers to. @return false when the thread is busy, or there is none. */
bool aside_launch(const struct launch *launch);
/** @return a launch that has ended, once; NULL without one. */
const struct launch *aside_launched(void);
/** Waits until a launch has ended, if there is one. */
void aside_wait(void);
/** Pid of its launch, as soon as that may have ended; otherwise 0. */
pid_t aside_pid(void);
/** Readable when a launch has ended; -1 without one. */
int aside_descriptor(void);

/** Closes a descriptor, here when the thread is busy or there is none. */
void aside_close(int fd);

#endif
