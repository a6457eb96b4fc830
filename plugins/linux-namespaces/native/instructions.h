// What the first process of a sandbox does before it becomes the agent.
#ifndef COPPICE_INSTRUCTIONS_H
#define COPPICE_INSTRUCTIONS_H

#include <sched.h>
#include <sys/types.h>

#define NAMESPACES ((unsigned long)(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC))

/** What the first process of a sandbox is given. */
struct given {
  /** What becomes the program's descriptor 3. */
  int listener;
  /** A user namespace that it has to join, or -1. */
  int users;
  /** What root of that namespace is on the host. */
  id_t first;
};

/**
 * Follows instruction words in the new namespaces and becomes the program that one of them names, with the
 * listener as its descriptor 3. What goes wrong is said on `say`, which nobody else holds.
 *
 *   join FILE                     moves this process into a control group
 *   own-groups                    makes that group the top of what it sees of them
 *   directory PATH MODE, file PATH MODE TEXT, link PATH TARGET, device PATH MAJOR MINOR
 *   overlay TARGET LOWERS LAYER DATA   with the directories `upper` and `work` of the layer
 *   tmpfs TARGET FLAGS DATA, proc TARGET, devpts TARGET DATA
 *   project-quota PATH PROJECT MEBIBYTES
 *   bind TARGET SOURCE FLAGS      with everything mounted below
 *   volume TARGET SOURCE FLAGS    as bind, over a directory of the root that is made where it is missing; no links
 *   root PATH                     from here on paths are inside of it, links included
 *   null PATH                     what files are hidden by, and standard input and output of the program
 *   read-only PATH, hide PATH     where it exists
 *   enter                         makes the root `/` and leaves the old one
 *   hostname NAME, loopback, capabilities MASK, no-new-privileges, system-calls
 *   resource-limit NAME VALUE     of each process; `files`, `processes`, `data` (bytes) or `core`
 *   owner                         what is made or mounted from here on is of the ids of the user namespace
 *   users                         joins it, with a network of its own
 *   program PATH                  opened at once, while the host can be seen
 *
 * FLAGS are letters: r read-only, s nosuid, d nodev, x noexec, m with the ids of the user namespace.
 */
_Noreturn void follow_instructions(const char **words, unsigned count, struct given given, int say);

/** Leaves this process, and what it becomes, the calls that a sandbox may use. @return 0 or -1 with errno. */
int limit_system_calls(void);

#endif
