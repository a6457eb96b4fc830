#ifndef COPPICE_USER_NAMESPACE_H
#define COPPICE_USER_NAMESPACE_H

#include <stdbool.h>
#include <sys/types.h>

/** Number of arguments of `enter_user_namespace`. */
enum { USER_NAMESPACE_WORDS = 7 };

/**
 * Makes this process root of a user namespace.
 * @param words a program that maps user ids (or empty) and its mapping; the same for groups; the user ids and groups of
 * a sandbox in the namespace; and a process of a sandbox of an earlier launcher (or empty), whose namespace this one
 * joins if possible.
 * @return what failed, or NULL.
 */
const char *enter_user_namespace(char *const words[USER_NAMESPACE_WORDS]);

/** True when sandboxes need a user namespace. */
bool is_in_user_namespace(void);

/**
 * For a root server: the user namespace of a range, whose id 0 is `first` on the host. It is cached for the next
 * sandbox with the range: to create one takes a tenth of the creation of a sandbox.
 * @return its descriptor, which stays open, or -1 with errno.
 */
int range_namespace(const char *first);

/** Maps the ids of a sandbox for the first process of its user namespace. */
bool map_sandbox(pid_t pid);

#endif
