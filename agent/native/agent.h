// Shared declarations of the agent. docs/agent-protocol.md describes the frames.
#ifndef COPPICE_AGENT_H
#define COPPICE_AGENT_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "frames.h"

enum {
  CHUNK_BYTES = 64 * 1024,
  INPUT_WINDOW_BYTES = 256 * 1024,
  // Credit of a frame beside its payload, so that many tiny frames are bounded, too.
  FRAME_COST = 64,
  // Room for the largest answer to one request.
  REPLY_BYTES = 2 * CHUNK_BYTES,
  OBJECTS_LIMIT = 8192,
  FILES_LIMIT = 256,
  GROUPS_LIMIT = 64,
  SHARED_PIPE_BYTES = 1024 * 1024,
  // Most of a stream in one frame. A pipe that was found full gets this capacity.
  RELAY_BYTES = PAYLOAD_LIMIT,
};

/** An object named by an id of the server. Freed at the end of the turn in which `is_dead` was set. */
struct object {
  struct object *next;
  struct object *next_in_bucket;
  const struct kind *kind;
  uint32_t id;
  bool is_dead;
  // Bytes that the server takes; the last frame of some kinds may exceed them.
  int64_t credit;
};

/** A kind of objects: the most at one time, and operations, of which absent ones do nothing. */
struct kind {
  unsigned limit;
  void (*free)(struct object *object);
  void (*input)(struct object *object, const uint8_t *data, uint32_t length);
  void (*end_input)(struct object *object);
  /** Sends what is due. @return true if there is more to do at once. */
  bool (*pump)(struct object *object);
  /** Names the descriptors to wait for. */
  void (*prepare)(struct object *object);
  void (*ready)(struct object *object, int role, short events);
  /**
   * Names a descriptor for the server to take, which stays open until the server ends the input or releases the id.
   * @return -1 without one.
   */
  int (*share)(struct object *object);
};
extern const struct kind process_kind, reader_kind, writer_kind, listing_kind, removal_kind, watcher_kind, dial_kind;

/** Buffered bytes from the server to a descriptor. */
struct sink {
  int fd;
  uint8_t *buffer;
  uint32_t start, length;
  // Bytes taken but not yet acknowledged.
  uint32_t taken;
  // Bytes that the server may still send.
  uint32_t window;
  bool is_ending;
};

/** Buffered bytes from a descriptor to the server. */
struct source {
  int fd;
  uint8_t frame;
  bool is_wide;
};

/** Output that was sent and not paid for with credit, as entries in a row. */
struct kept {
  bool is_on;
  // The connection has given credit already.
  bool is_granted;
  uint8_t *bytes;
  uint32_t capacity;
  // Positions of the oldest entry, of the next one to send, and after the last one.
  uint32_t start, sent, end;
  // Credit that does not pay for the whole oldest entry yet.
  uint32_t paid;
  // Bytes of output before the oldest entry.
  uint64_t from;
};

struct account {
  // The agent's own, which needs no change of identity.
  bool is_self;
  char name[256];
  char home[1024];
  char shell[1024];
  uint32_t uid, gid;
  uint32_t groups[GROUPS_LIMIT];
  uint16_t group_count;
};

// main.c: objects, the connection, the loop
extern struct object *objects;
// Incremented after requests were received, and with every turn of a long one: what has been looked up in this moment
// need not be looked up again.
extern uint64_t moment;
// Limit for started programs: this process raises its own.
extern struct rlimit descriptor_limit;
struct object *find_object(uint32_t id);
// Returns NULL with errno, at the limit of the kind too.
void *add_object(size_t size, const struct kind *kind, uint32_t id);
unsigned count_objects(const struct kind *kind);
void watch_descriptor(int fd, short events, struct object *owner, int role);
bool is_connected(void);
// Whether a whole request has been received and not handled.
bool has_more_requests(void);
size_t room(void);
// Starts a frame in the outgoing buffer. Every started frame must be finished.
struct writer begin_frame(uint8_t type, uint32_t id);
void finish_frame(struct writer *frame);
void send_empty(uint8_t type, uint32_t id);
void send_u32(uint8_t type, uint32_t id, uint32_t value);
void send_error(uint32_t id, uint8_t stage, int error, const char *detail);
void break_connection(const char *why);

// streams.c
// Moves available bytes of a source into a frame, and keeps them where that is on. 0: none now, 1: some, -1: end of file.
int relay_source(struct source *source, struct object *object, struct kept *kept);
bool can_relay(const struct object *object);
bool sink_put(struct sink *sink, const uint8_t *data, uint32_t length);
// Returns false when the descriptor accepts no more bytes.
bool sink_flush(struct sink *sink);
// Acknowledges half a window at a time while more is to come, and all when the server may wait for the last bytes.
void sink_acknowledge(struct sink *sink, uint32_t id);
void sink_close(struct sink *sink);
void source_close(struct source *source);

// kept.c
void kept_add(struct kept *kept, uint8_t type, const uint8_t *data, uint32_t length);
// Removes what the credit pays for.
void kept_pay(struct kept *kept, uint32_t bytes);
// Everything is to be sent again.
void kept_rewind(struct kept *kept);
bool kept_is_due(const struct kept *kept);
// Sends the next entry. Returns false without credit or room.
bool kept_send(struct kept *kept, struct object *object);
void kept_free(struct kept *kept);

// processes.c
void process_spawn(uint32_t id, const struct spawn_request *request);
void process_reap(void);
void process_signal(struct object *object, uint8_t scope, struct text name);
void process_resize(struct object *object, uint16_t columns, uint16_t rows);
// The server has taken so much output.
void process_paid(struct object *object, uint32_t bytes);
void process_discard(struct object *object);
void process_release(struct object *object);
void process_disconnected(struct object *object);
bool process_announce(struct object *object);
void process_kill_all(void);

// accounts.c: the sandbox's own /etc/passwd and /etc/group, read by hand
bool account_by_name(struct text name, struct account *account);
const char *user_name(uint32_t uid, char text[16]);
const char *group_name(uint32_t gid, char text[16]);
// Returns 0 or an errno. Fills in the account of an identity as far as it is known.
int resolve_identity(const struct identity *identity, struct account *account);

// files/
void files_request(uint32_t id, const struct request *request);
void files_read(struct object *object, uint64_t offset, uint32_t length);
// True for a directory entry that is an unfinished file of this process.
bool files_is_temporary(const char *name);

// watch.c
enum { ROLE_CHANGES = -3 };
void start_watch(uint32_t id, const struct request *request);
/** @return true if changes are to be read again at once. */
bool watch_prepare(void);
void watch_ready(void);
// Reports changes by requests right behind their answers, in one write.
void watch_follow(void);

// dial.c
void dial_request(uint32_t id, const struct request *request);

#endif
