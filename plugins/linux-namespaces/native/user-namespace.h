#ifndef COPPICE_USER_NAMESPACE_H
#define COPPICE_USER_NAMESPACE_H

#include <stdbool.h>
#include <sys/types.h>

/** How many words `enter_user_namespace` takes. */
enum { USER_NAMESPACE_WORDS = 7 };

/**
 * Makes this process root of a user namespace. The words: a program that maps user ids or nothing, what it
 * maps; the same for groups; then which of the namespace's user ids and groups a sandbox has; and a process of a
 * sandbox that an earlier launcher made, or nothing: where it can be, this one becomes root where that one was.
 * @return what failed, or NULL.
 */
const char *enter_user_namespace(char *const words[USER_NAMESPACE_WORDS]);

/** Whether sandboxes need a user namespace. */
bool is_in_user_namespace(void);

/**
 * For a server that is root: the user namespace of a range, whose ids from 0 on are those of the host from `first` on.
 * It is kept for the next sandbox that gets the range: to make one takes as long as a tenth of a sandbox.
 * @return its descriptor, which stays open, or -1 with errno.
 */
int range_namespace(const char *first);

/** Gives a process, the first in a user namespace of its own, the ids of a sandbox. */
bool map_sandbox(pid_t pid);

#endif
