// Shared declarations of the agent's work on files.
#ifndef COPPICE_FILES_H
#define COPPICE_FILES_H

#include <dirent.h>
#include <limits.h>
#include <sys/stat.h>

#include "../agent.h"

#define METADATA_PREFIX "user.e2b."
enum { METADATA_PREFIX_LENGTH = sizeof METADATA_PREFIX - 1, ATTEMPTS = 8, DIRECTORY_MODE = 0755, ENTRIES_PER_TURN = 128 };

/** Target of a path: an entry, existing or not, of an open directory. */
struct place {
  int parent;
  char name[NAME_MAX + 1];
  // Path of the parent, whether or not links were resolved.
  char parent_path[PATH_MAX];
  bool exists;
  // True where the entry was found by a link in its place.
  bool is_behind_link;
  struct stat status;
};

// place.c: paths
bool is_dots(const char *name);
int open_directory(const char *path);
/** Opens the nearest existing directory above a path. */
int open_above(const char *path);
/** Leaves `parent` at -1 when the directory itself is missing. @return 0, even for a missing entry, or an errno. */
int find_place(const char *path, struct place *place);
/** As `find_place`, but follows a link in the last component to an existing or missing target. */
int find_target(const char *path, struct place *place);
/** As `find_target` or `find_place`, but creates missing parents. */
int find_making_parents(const char *path, bool follows, const struct account *owner, struct place *place);
void close_place(struct place *place);
int set_owner(int directory, const char *name, const struct account *owner);
/** A directory stream on a descriptor, which it takes over. @return NULL with errno. */
DIR *open_entries(int fd);
void fail_file(uint32_t id, int error, const char *path);

// files.c: descriptions
/** @param path its path below the root. */
void put_info(struct writer *writer, int fd, const struct stat *status, const char *path);
/** Answers with the description of an entry, or with the error of what was done to it. */
void send_info(uint32_t id, int error, const char *path);
/** Uses the identity of an account for files until `platform_act_as_self`. @return 0 or an errno. */
int act(const struct account *actor);

// write.c
/** Best effort: not every file system has attributes. */
void clear_metadata(int fd);
void set_metadata(int fd, const struct attribute *attributes, unsigned count);
/** Answers, too. */
void write_in_place(uint32_t id, const struct request *request, const struct account *owner);
void start_writing(uint32_t id, const struct request *request, const struct account *actor, const struct account *owner);

// list.c, remove.c
void start_listing(uint32_t id, const struct request *request, const struct account *actor);
void start_removal(uint32_t id, const char *path, const struct account *actor);

#endif
