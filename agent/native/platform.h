// What differs between operating systems. One file per system implements it: linux.c, freebsd.c. Changes of directories
// come by inotify(7) or kqueue(2), whichever the system has: changes-inotify.c, changes-kqueue.c.
#ifndef COPPICE_PLATFORM_H
#define COPPICE_PLATFORM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/param.h>
#include <sys/types.h>

// In tests elsewhere, with stand-ins for what only FreeBSD has: testing/.
#if defined(__FreeBSD__) || defined(COPPICE_STANDS_IN_FOR_FREEBSD)
#define COPPICE_IS_FREEBSD
#endif
// FreeBSD has it from 15 on.
#if !defined(COPPICE_IS_FREEBSD) || (defined(__FreeBSD__) && __FreeBSD_version >= 1500000)
#define COPPICE_HAS_INOTIFY
#endif

/** Keeps other processes, root's included, from looking into this one; makes orphans its children. */
void platform_harden(void);
void platform_close_from(int first);
/** Kills every descendant of this process, and waits for the end of it. */
void platform_kill_descendants(void);

/** What file operations see as `/`. @return a descriptor, or -1 with errno. */
int platform_open_root(const char *path);
/** Opens an absolute path, which leads neither out of the root nor through what /proc shows of a process. */
int platform_open(const char *path, int flags, mode_t mode);
/** Opens what a descriptor of any kind stands for anew, for reading or writing. */
int platform_reopen(int fd, int flags);
/** The path of a descriptor below the root. @return false when it has none. */
bool platform_path(int fd, char *path, size_t size);
/** An unnamed file in a directory, or -1 with errno where there is no such thing. */
int platform_temporary(int directory);
/** Gives an unnamed file a name that is not taken. @return 0 or -1 with errno. */
int platform_link(int fd, int directory, const char *name);

/** Whether a descriptor of any kind is on NFS, SMB or FUSE. @return 1, 0, or -1 with errno. */
int platform_is_network(int fd);

/** chmod(2) of what a descriptor of any kind stands for. */
int platform_change_mode(int fd, mode_t mode);

/** Becomes somebody else for good. @return 0 or -1 with errno. */
int platform_become(uint32_t uid, uint32_t gid, const uint32_t *groups, unsigned count);
/** Acts on files as somebody else until `platform_act_as_self`. @return 0 or -1 with errno. */
int platform_act_as(uint32_t uid, uint32_t gid, const uint32_t *groups, unsigned count);
void platform_act_as_self(void);

/** Extended attributes `user.e2b.*` of what a descriptor of any kind stands for. */
ssize_t platform_list_attributes(int fd, char *names, size_t size);
ssize_t platform_get_attribute(int fd, const char *name, void *value, size_t size);
int platform_set_attribute(int fd, const char *name, const void *value, size_t size);
int platform_remove_attribute(int fd, const char *name);

enum change_kind { CHANGE_CREATE = 1, CHANGE_WRITE, CHANGE_REMOVE, CHANGE_RENAME, CHANGE_MODE, CHANGE_OVERFLOW, CHANGE_GONE };

struct change {
  int directory;
  uint8_t kind;
  bool is_directory;
  // Equal for the two halves of one rename, else 0.
  uint32_t cookie;
  const char *name;
};

/** A queue of changes of directories. @return a descriptor to poll, or -1 with errno. */
int platform_changes_open(void);
/** @return what names the directory in its changes, or -1 with errno. */
int platform_changes_add(int changes, int directory);
void platform_changes_remove(int changes, int watched);
/** Calls back for some of what has been queued. @return false when there was nothing. */
bool platform_changes_read(int changes, void (*on_change)(const struct change *change));

#ifdef COPPICE_HAS_INOTIFY
/** Adds a directory to a queue of inotify(7), for changes-inotify.c. @return as `platform_changes_add`. */
int platform_inotify_add(int changes, int directory, uint32_t mask);
#endif

#endif
