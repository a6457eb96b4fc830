#ifndef COPPICE_DISK_H
#define COPPICE_DISK_H

/**
 * Assigns an empty directory, and all later files in it, to a project with a limit.
 * @param mebibytes 0 removes the limit. @return 0 or -1 with errno.
 */
int limit_project(const char *directory, const char *project, const char *mebibytes);

/**
 * Performs an operation on the disk below a directory, writes the answer to `say` and ends this process.
 *
 *   enforced DIRECTORY                  1 with project quotas, else 0
 *   spread DIRECTORY                    lets the file system keep what is below it in different places
 *   measure DIRECTORY ENTRIES           bytes of a tree, of at most so many entries; and `changed` if a name led nowhere
 *   measure DIRECTORY ENTRIES PROCESSES adds removed files that the processes listed in that file hold open
 *   count DIRECTORY                     bytes and entries of a tree
 *   usage DIRECTORY PROJECT             bytes of a project
 *   hold DIRECTORY PROJECT MEBIBYTES    `limit_project`
 *   limit DIRECTORY PROJECT MEBIBYTES   changes the limit of a project
 */
_Noreturn void answer_about_disk(const char **words, unsigned count, int say);

#endif
