// The last steps before a program runs.
#ifndef COPPICE_LAUNCH_H
#define COPPICE_LAUNCH_H

#include "agent.h"

// Report of a launch to the waiting agent: a stage with an errno, or LAUNCH_READY with its pid. The detail of an errno
// follows, up to the end.
enum { LAUNCH_READY = 0, LAUNCH_REPORT_BYTES = 5 };

/** Input of a launch, and what a child that shares the memory of its agent reports: its pid, and where it failed. */
struct launch {
  const struct spawn_request *request;
  const struct account *account;
  const char *directory;
  int input, output, error_output;
  // Socket of the waiting agent, if it shares no memory with this process, or -1.
  int report;
  // Terminal end for that agent, or -1.
  int terminal;
  bool changes_identity;
  // 0 where no process could be made. Known before the process can end.
  volatile pid_t pid;
  // 0 where the program runs.
  volatile int error;
  volatile uint8_t stage;
};

/** Starts the program in a child of this process. Waits until it is executed, or the launch has failed.
 * @param way to the program between (see entry.h), or -1. */
void launch_child(struct launch *launch, int way);
_Noreturn void run_launch(struct launch *launch);
/** Reads a SPAWN from a socket and becomes its program. */
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
