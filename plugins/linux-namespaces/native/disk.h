#ifndef COPPICE_DISK_H
#define COPPICE_DISK_H

/**
 * Makes a directory, and whatever will be made in it, part of a project that may use so much of the disk.
 * Nothing in it may be older. @param mebibytes 0 takes the limit away. @return 0 or -1 with errno.
 */
int limit_project(const char *directory, const char *project, const char *mebibytes);

/**
 * Answers a question about the disk below a directory on `say` and ends this process.
 *
 *   enforced DIRECTORY                  1 where limits of projects hold, else 0
 *   measure DIRECTORY ENTRIES           bytes that a tree takes up, where so many entries are looked at at most
 *   measure DIRECTORY ENTRIES PROCESSES as well what processes, listed in that file, hold open of files without a name
 *   usage DIRECTORY PROJECT             bytes that a project takes up
 *   hold DIRECTORY PROJECT MEBIBYTES    `limit_project`
 *   limit DIRECTORY PROJECT MEBIBYTES   changes what a project may use
 */
_Noreturn void answer_about_disk(const char **words, unsigned count, int say);

#endif
