// The jails of a stand-in host: one file each in `state/`, beside the directory of the programs.
#ifndef STAND_IN_JAIL_TABLE_H
#define STAND_IN_JAIL_TABLE_H

#include <stdbool.h>
#include <sys/types.h>

enum { TEXT_BYTES = 1024 };

struct jail {
  int jid;
  /** First process of its namespaces, which keeps a jail that has no other. */
  pid_t init;
  char name[256], path[TEXT_BYTES], hostname[256];
};

/** Finds the table by the path of the program. */
void open_table(void);
/** A path in the directory of the table. */
const char *in_table(const char *name);
/** By name or number. */
bool find_jail(const char *which, struct jail *jail);
bool write_jail(const struct jail *jail);
void forget_jail(const struct jail *jail);
int next_jid(void);
/** Calls back for each jail, in the order of their numbers. */
void each_jail(void (*visit)(const struct jail *jail));
/**
 * Those that were removed a moment ago: the kernel keeps a jail, and with it the root (zfs.sh), while something refers to
 * it, such as a connection in TIME_WAIT (sys/kern/kern_jail.c, prison_deref: PRISON_STATE_DYING). Here it is always as
 * long as that takes at most.
 */
void each_dying_jail(void (*visit)(const struct jail *jail));
bool is_dying(const char *name);
/** Why there is no such jail, as jail_get(2) says it. */
const char *reason_without(const char *which);

/** Gives up what a process in a jail must not have: capabilities, system calls, privileges by descriptors. */
int confine(void);
/** Whether a process is one of the jail's, of which its first is none: FreeBSD's jails do not have it. */
bool is_in_jail(pid_t pid, const struct jail *jail);

/** Starts the process of the host that says whom those of a jail can signal; it ends with the jail's first. */
int start_warden(const struct jail *jail);
/** @return a connection to it, for the next function. */
int reach_warden(const struct jail *jail);
/** Puts the caller and its descendants under it, before `confine`. */
int submit_signals(int warden);

#endif
