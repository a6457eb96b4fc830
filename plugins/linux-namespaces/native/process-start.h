#ifndef COPPICE_PROCESS_START_H
#define COPPICE_PROCESS_START_H

#include <stdbool.h>
#include <sys/types.h>

/** Reads the 22nd field of /proc/<pid>/stat, which distinguishes processes that reuse a pid. */
bool read_start(pid_t pid, char start[32]);

#endif
