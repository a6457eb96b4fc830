// The way of a program through another, which brings it to where it is to run: `jexec … coppice-agent launch 3`.
#ifndef COPPICE_ENTRY_H
#define COPPICE_ENTRY_H

#include "agent.h"

/** A program on its way. What comes from there is hostile. */
struct entry {
  // Its SPAWN; the descriptor is also where it reports.
  struct sink record;
  uint8_t report[64 + PATH_LIMIT];
  uint32_t length;
  // A descriptor that came with the report, or -1.
  int terminal;
  // Nothing more comes.
  bool is_over;
  // A server waits for the start of it.
  bool is_awaited;
};

/** Has programs started through this one; a null pointer ends its words. */
void entry_set(char **words);
bool entry_is_set(void);
/** Keeps the SPAWN that is about to be parsed, which changes it. */
void entry_keep(const uint8_t *payload, uint32_t length);
/** @return NULL with errno. `far` is for the program. */
struct entry *entry_open(int *far);
void entry_free(struct entry *entry);
/** Runs the program, which has `far` as descriptor 3. Returns where it cannot, with errno. */
void entry_run(int far);
void entry_prepare(struct entry *entry, struct object *owner, int role);
/** Moves what can be moved, in both directions. */
void entry_move(struct entry *entry);
/** @return 0 when the program was about to run, with its number there; else a stage, an errno and the detail. */
uint8_t entry_outcome(const struct entry *entry, uint32_t *value, struct text *detail);

#endif
