// Start of a program through another one that enters its environment: `jexec … coppice-agent launch 3`.
#ifndef COPPICE_ENTRY_H
#define COPPICE_ENTRY_H

#include "agent.h"

/** A program that is being started. Its messages are hostile. */
struct entry {
  // Its SPAWN; the descriptor also receives its report.
  struct sink record;
  uint8_t report[64 + PATH_LIMIT];
  uint32_t length;
  // Descriptor received with the report, or -1.
  int terminal;
  // True after the end of the report.
  bool is_over;
  // True while a server waits for the start.
  bool is_awaited;
};

/** Sets the program, with NULL-terminated arguments, through which all others are started. */
void entry_set(char **words);
bool entry_is_set(void);
/** Copies the SPAWN before it is parsed in place. */
void entry_keep(const uint8_t *payload, uint32_t length);
/** @return NULL with errno. `far` is for the program. */
struct entry *entry_open(int *far);
void entry_free(struct entry *entry);
/** Runs the program with `far` as descriptor 3. Returns only on failure, with errno. */
void entry_run(int far);
void entry_prepare(struct entry *entry, struct object *owner, int role);
/** Transfers what is possible in both directions. */
void entry_move(struct entry *entry);
/** @return 0 with its pid when the program is about to run; else a stage with an errno and the detail. */
uint8_t entry_outcome(const struct entry *entry, uint32_t *value, struct text *detail);

#endif
