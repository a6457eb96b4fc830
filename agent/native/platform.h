// Interface to the operating system, implemented in linux.c and freebsd.c. Directory changes use inotify(7) or
// kqueue(2), whichever the system has: changes-inotify.c, changes-kqueue.c.
#ifndef COPPICE_PLATFORM_H
#define COPPICE_PLATFORM_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/param.h>
#include <sys/types.h>

// Also in tests on Linux, with stand-ins for interfaces of FreeBSD: testing/.
#if defined(__FreeBSD__) || defined(COPPICE_STANDS_IN_FOR_FREEBSD)
#define COPPICE_IS_FREEBSD
#endif
// FreeBSD has it since 15.
#if !defined(COPPICE_IS_FREEBSD) || (defined(__FreeBSD__) && __FreeBSD_version >= 1500000)
#define COPPICE_HAS_INOTIFY
#endif

/** Keeps other processes, including root's, from tracing this one; makes orphans its children. */
void platform_harden(void);
void platform_close_from(int first);
/** Sends SIGKILL to every child of this process, and to as many of their descendants as the system finds for it. */
void platform_kill_children(void);

// The `/` of file operations: files/root.c.
extern int root_directory;
/** Whether it is another than that of the system. */
extern bool is_confined;
bool open_root(const char *path);
/** Path of a descriptor below the root. @return false when it has none. */
bool path_below_root(int fd, char *path, size_t size);

/** Opens an absolute path within the root, and never through links of /proc to files of processes. */
int platform_open(const char *path, int flags, mode_t mode);
/** Reopens the file of any descriptor for reading or writing. */
int platform_reopen(int fd, int flags);
/** Path of a descriptor below the root of the system. @return false when it has none. */
bool platform_path(int fd, char *path, size_t size);
/** Opens an unnamed file in a directory. @return -1 with errno where this is not supported. */
int platform_temporary(int directory);
/** Links an unnamed file to a free name. @return 0 or -1 with errno. */
int platform_link(int fd, int directory, const char *name);

/** True for any descriptor on NFS, SMB or FUSE. @return 1, 0, or -1 with errno. */
int platform_is_network(int fd);
/** True for a file by which the system shows its processes, below /proc. @return as above. */
int platform_is_of_processes(int fd);

/** Makes the buffer of a pipe larger, as far as the system lets it. */
void platform_widen_pipe(int fd, int bytes);

/** chmod(2) for the file of any descriptor. */
int platform_change_mode(int fd, mode_t mode);

/** Gives the session that this process leads the login name of an account, where sessions have one. */
void platform_name_session(const char *name);
/** Changes the identity permanently. @return 0 or -1 with errno. */
int platform_become(uint32_t uid, uint32_t gid, const uint32_t *groups, unsigned count);
/** Uses another identity for files until `platform_act_as_self`. @return 0 or -1 with errno. */
int platform_act_as(uint32_t uid, uint32_t gid, const uint32_t *groups, unsigned count);
void platform_act_as_self(void);

/** Extended attributes `user.e2b.*` of the file of any descriptor. */
ssize_t platform_list_attributes(int fd, char *names, size_t size);
ssize_t platform_get_attribute(int fd, const char *name, void *value, size_t size);
int platform_set_attribute(int fd, const char *name, const void *value, size_t size);
int platform_remove_attribute(int fd, const char *name);

enum change_kind { CHANGE_CREATE = 1, CHANGE_WRITE, CHANGE_REMOVE, CHANGE_RENAME, CHANGE_MODE, CHANGE_OVERFLOW, CHANGE_GONE };

struct change {
  int directory;
  uint8_t kind;
  bool is_directory;
  // Equal for the two halves of a rename, otherwise 0.
  uint32_t cookie;
  // Of CHANGE_OVERFLOW: an errno, or 0 where the queue of the kernel was full.
  int error;
  const char *name;
};

static inline bool is_out_of_descriptors(int error) { return error == EMFILE || error == ENFILE; }

/** A queue of changes of directories. @return a descriptor to poll, or -1 with errno. */
int platform_changes_open(void);
/** @return the directory's number in its changes, or -1 with errno. */
int platform_changes_add(int changes, int directory);
void platform_changes_remove(int changes, int watched);
/** Calls back for some queued changes. @return false without any. */
bool platform_changes_read(int changes, void (*on_change)(const struct change *change));

#ifdef COPPICE_HAS_INOTIFY
/** Adds a directory to an inotify(7) queue, for changes-inotify.c. @return as `platform_changes_add`. */
int platform_inotify_add(int changes, int directory, uint32_t mask);
#endif

#endif
