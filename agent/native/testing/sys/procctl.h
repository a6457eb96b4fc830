// procctl(2) as the agent uses it, implemented in processes.c. Source: sys/kern/kern_procctl.c (reap_kill). Not here: the
// reapers below this one, and other commands.
#ifndef COPPICE_TESTING_PROCCTL_H
#define COPPICE_TESTING_PROCCTL_H

#include <sys/types.h>
#include <sys/wait.h>

#define PROC_REAP_ACQUIRE 2
#define PROC_REAP_KILL 6
#define PROC_TRACE_CTL 7
#define PROC_TRACE_CTL_DISABLE 2

struct procctl_reaper_kill {
  int rk_sig;
  unsigned rk_flags;
  pid_t rk_subtree;
  unsigned rk_killed;
  pid_t rk_fpid;
};

int procctl(idtype_t kind, id_t id, int command, void *data);

#endif
