#ifndef COPPICE_CONNECT_H
#define COPPICE_CONNECT_H

#include <stdbool.h>
#include <stdint.h>

/** Descriptor of the channel over which child_process of Node.js takes handles. */
enum { CHANNEL = 4 };

/**
 * Opens a connection to a loopback port in the network of a process, and passes it through the channel with the
 * request's number. Runs in a child, because a launcher that is not root could not leave that network.
 * @param words its pid, its start time, and the port.
 * @param say takes the reason of a failure.
 */
_Noreturn void connect_inside(uint32_t number, const char **words, int say);

/**
 * Does the same without a child, for root, who can return to this network.
 * @return false when the handshake was not over at once, or anything failed: then a child is to try, which may wait.
 */
bool connect_at_once(uint32_t number, const char **words);

/** Drops what Node.js says of passed connections: unread, it would fill the channel. Ends this process with it. */
void drain_channel(void);

#endif
