// Files of /proc and /sys that show the limits of a sandbox in place of those of its host.
#ifndef COPPICE_SHOWN_H
#define COPPICE_SHOWN_H

#include <stdbool.h>

/**
 * Takes over descriptors in a row, as `shownFiles` of the backend lists them: files of control groups and of the host to
 * read, then files to keep up to date.
 */
void shown_open(int first);
/** Descriptor to poll, or -1. */
int shown_descriptor(void);
/** Call it when that is readable. */
void shown_ready(void);
/** Lets those go on that wait for a file, with what is true now. Call it after SIGIO, and before opening such a file. */
void shown_renew(void);

#endif
