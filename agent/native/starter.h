// A second thread that starts programs: a start lasts until the program is executed, and of many that come together two
// can be made at a time.
#ifndef COPPICE_STARTER_H
#define COPPICE_STARTER_H

#include "launch.h"

/** Launches from copies of everything that a launch refers to. @return false when it is busy, or there is none. */
bool starter_take(const struct launch *launch);
/** @return a launch that has ended, once; NULL without one. */
const struct launch *starter_result(void);
/** Waits until there is a result, if there is a launch. */
void starter_wait(void);
/** Pid of its launch, as soon as that may have ended; otherwise 0. */
pid_t starter_pid(void);
/** Readable when there is a result; -1 without a launch. */
int starter_descriptor(void);

#endif
