// Type of a file system. Source: lib/libc/gen/getvfsbyname.c.
#ifndef COPPICE_TESTING_MOUNT_H
#define COPPICE_TESTING_MOUNT_H

#include <sys/vfs.h>

struct xvfsconf {
  int vfc_typenum;
};

int getvfsbyname(const char *name, struct xvfsconf *kind);

#endif
