// extattr(2) in the user name space. Source: sys/kern/vfs_extattr.c. Not here: other name spaces, files by their paths.
#ifndef COPPICE_TESTING_EXTATTR_H
#define COPPICE_TESTING_EXTATTR_H

#include <sys/types.h>

#define EXTATTR_NAMESPACE_USER 1

ssize_t extattr_list_fd(int fd, int space, void *names, size_t size);
ssize_t extattr_get_fd(int fd, int space, const char *name, void *value, size_t size);
ssize_t extattr_set_fd(int fd, int space, const char *name, const void *value, size_t size);
int extattr_delete_fd(int fd, int space, const char *name);

#endif
