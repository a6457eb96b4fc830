// The last steps before a program runs.
#ifndef COPPICE_LAUNCH_H
#define COPPICE_LAUNCH_H

#include "agent.h"

// What a launch reports to the agent that waits for it: a stage and an errno, or that it is ready and its
// number. What follows an errno is the detail, up to the end.
enum { LAUNCH_READY = 0, LAUNCH_REPORT_BYTES = 5 };

/** All that it takes. A child that shares the memory of its agent tells why it gave up by `error` and `stage`. */
struct launch {
  const struct spawn_request *request;
  const struct account *account;
  const char *directory;
  int input, output, error_output;
  // Where an agent listens that this process shares no memory with, or -1.
  int report;
  // The end of the terminal that such an agent is to have, or -1.
  int terminal;
  bool changes_identity;
  volatile int error;
  volatile uint8_t stage;
};

/** Becomes the program. */
_Noreturn void run_launch(struct launch *launch);
/** Reads a SPAWN from a socket, and becomes its program. */
_Noreturn void launch_from(int fd);
bool changes_identity(const struct spawn_request *request, const struct account *account);

/** Both ends of the three streams. `far` are the program's. */
struct streams {
  int near[3], far[3];
};
void close_all(int descriptors[3]);
/** @return 0 or an errno. */
int open_terminal(struct streams *streams, const struct spawn_request *request, const struct account *account);

#endif
