// Parts of FreeBSD's open(2), fcntl(2) and chmod(2) that differ on Linux, implemented in files.c.
// Source: sys/kern/vfs_lookup.c (namei) and kern_descrip.c (kern_fcntl). Not here: other flags and commands.
#ifndef COPPICE_TESTING_FCNTL_H
#define COPPICE_TESTING_FCNTL_H

#include_next <fcntl.h>
#include <sys/stat.h>

#define O_EMPTY_PATH 0x10000000
#define O_RESOLVE_BENEATH 0x20000000
#define F_KINFO 2200
#define ENOTCAPABLE 2093

int freebsd_openat(int directory, const char *path, int flags, ...);
int freebsd_fcntl(int fd, int command, ...);
int freebsd_fchmodat(int directory, const char *path, mode_t mode, int flags);

#ifndef COPPICE_TESTING_FILES
#define openat freebsd_openat
#define fcntl freebsd_fcntl
#define fchmodat freebsd_fchmodat
#endif

#endif
