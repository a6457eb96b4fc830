// Instructions of a sandbox's first process, before it becomes the agent.
#ifndef COPPICE_INSTRUCTIONS_H
#define COPPICE_INSTRUCTIONS_H

#include <sched.h>
#include <sys/types.h>

/** Exit status after an instruction that failed. */
enum { FAILED_INSTRUCTION = 125 };

#define NAMESPACES ((unsigned long)(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC))

/** Inherited state of the first process. */
struct given {
  /** Becomes descriptor 3 of the agent. */
  int listener;
  /** A user namespace to join, or -1. */
  int users;
  /** Host id of root in that namespace. */
  id_t first;
};

/**
 * Executes instructions in the new namespaces and becomes the program that one of them names: the agent, or with
 * arguments another one, whose output goes to `say`, too. Writes errors to `say`.
 *
 *   join FILE                     moves this process into a control group
 *   own-groups                    makes that group the root of its view
 *   directory PATH MODE, file PATH MODE TEXT, link PATH TARGET, device PATH MAJOR MINOR
 *   overlay TARGET LOWERS LAYER DATA   with the directories `upper` and `work` of the layer
 *   tmpfs TARGET FLAGS DATA, proc TARGET, devpts TARGET DATA
 *   project-quota PATH PROJECT MEBIBYTES
 *   bind TARGET SOURCE FLAGS      with everything mounted below
 *   volume TARGET SOURCE FLAGS    as bind, over a directory of the root, created if missing; no links
 *   root PATH                     later paths resolve inside of it, links included
 *   null PATH                     mounted over hidden files; standard input and output of the program
 *   read-only PATH, hide PATH     skipped if missing
 *   cover TARGET SOURCE           as bind, read-only; skipped if the target is missing
 *   detach PATH                   unmounts what is mounted there last
 *   keep PATH MODE                opens a file for the agent: r one of the host, to read, w one of the root, also to write
 *   enter                         makes the root `/` and unmounts the old one
 *   hostname NAME, loopback, capabilities MASK, no-new-privileges, system-calls
 *   resource-limit NAME VALUE     of each process; `files`, `processes`, `data` (bytes), `core`,
 *                                 `file-size` (bytes) or `cpu-seconds`
 *   owner                         later files and mounts have ids of the user namespace
 *   users                         joins it, with a new network namespace
 *   program PATH                  opened at once, while the host is visible
 *   argument WORD                 of that program, its name first
 *
 * FLAGS are letters: r read-only, s nosuid, d nodev, x noexec, m with the ids of the user namespace.
 */
_Noreturn void follow_instructions(const char **words, unsigned count, struct given given, int say);

/** Limits this process and its successors to the system calls of a sandbox. @return 0 or -1 with errno. */
int limit_system_calls(void);

#endif
