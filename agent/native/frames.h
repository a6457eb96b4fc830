// The wire format: frames and the requests in them. Uses no descriptors, so that it can be fuzzed alone.
#ifndef COPPICE_FRAMES_H
#define COPPICE_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROTOCOL_MAGIC 0x50504f43u
enum {
  PROTOCOL_VERSION = 1,
  PAYLOAD_LIMIT = 256 * 1024,
  HEADER_BYTES = 9,
  ARGUMENTS_LIMIT = 32 * 1024,
  VARIABLES_LIMIT = 8 * 1024,
  LIMITS_LIMIT = 8,
  IDENTITY_GROUPS_LIMIT = 64,
  METADATA_LIMIT = 128,
  PATH_LIMIT = 4095,
  // In the greeting, for servers that find an older agent: SHARE is known.
  FEATURE_SHARE = 1,
};

enum request_type {
  HELLO = 0x01,
  PROCESSES = 0x02,
  SPAWN = 0x03,
  INPUT = 0x04,
  INPUT_END = 0x05,
  CREDIT = 0x06,
  SIGNAL = 0x07,
  RESIZE = 0x08,
  DISCARD = 0x09,
  RELEASE = 0x0a,
  END = 0x0b,
  SHARE = 0x0c,
  ACCOUNT = 0x10,
  STAT = 0x20,
  LIST = 0x21,
  OPEN = 0x22,
  READ = 0x23,
  WRITE = 0x24,
  MAKE_DIRECTORY = 0x25,
  MOVE = 0x26,
  REMOVE = 0x27,
  CHANGE = 0x28,
  WATCH = 0x30,
  DIAL = 0x31,
};

enum reply_type {
  REPLY_HELLO = 0x81,
  REPLY_PROCESS = 0x82,
  REPLY_PROCESSES_END = 0x83,
  REPLY_STARTED = 0x84,
  REPLY_ERROR = 0x85,
  REPLY_OUTPUT = 0x86,
  REPLY_ERROR_OUTPUT = 0x87,
  REPLY_OUTPUT_END = 0x88,
  REPLY_EXIT = 0x89,
  REPLY_TAKEN = 0x8a,
  REPLY_INPUT_CLOSED = 0x8b,
  REPLY_SIGNALLED = 0x8c,
  REPLY_RELEASED = 0x8d,
  REPLY_SHARED = 0x8e,
  REPLY_ACCOUNT = 0x90,
  REPLY_INFO = 0xa0,
  REPLY_ENTRIES = 0xa1,
  REPLY_DONE = 0xa2,
  REPLY_CHANGES = 0xb0,
};

/** Step at which a request failed. */
enum stage {
  STAGE_REQUEST = 1,
  STAGE_USER,
  STAGE_DIRECTORY,
  STAGE_RESOURCES,
  STAGE_TERMINAL,
  STAGE_LIMITS,
  STAGE_CREDENTIALS,
  STAGE_EXECUTE,
  STAGE_FILE,
  STAGE_PARENT,
  STAGE_WATCH,
  STAGE_DIAL,
  STAGE_ENTRY,
};

/** Bytes inside a frame; NUL-terminated where the comment of the field says so. */
struct text {
  const char *bytes;
  uint32_t length;
};

enum identity_kind { IDENTITY_SELF, IDENTITY_NAME, IDENTITY_NUMBERS };

struct identity {
  uint8_t kind;
  struct text name;
  uint32_t uid, gid;
  uint16_t group_count;
  uint32_t groups[IDENTITY_GROUPS_LIMIT];
};

struct resource_limit {
  uint8_t resource;
  uint64_t soft, hard;
};

enum { SPAWN_INPUT = 1, SPAWN_TERMINAL = 2, SPAWN_KEEPS_OUTPUT = 4 };

struct spawn_request {
  uint8_t flags;
  uint16_t columns, rows;
  uint32_t credit;
  uint16_t mask;
  struct identity identity;
  struct text directory;
  struct text label;
  uint8_t limit_count;
  struct resource_limit limits[LIMITS_LIMIT];
  // NUL-terminated strings in a NULL-terminated array. There is a place before the first argument.
  char **arguments;
  char **variables;
};

struct attribute {
  struct text name, value;
};

enum { WRITE_METADATA = 1, WRITE_STAGED = 2 };
enum { WATCH_RECURSIVE = 1, WATCH_NETWORK_MOUNTS = 2 };
enum { CHANGE_HAS_MODE = 1, CHANGE_HAS_OWNER = 2, CHANGE_HAS_METADATA = 4 };

/** Any request of the server. Points into the frame, which parsing changed: strings were NUL-terminated. */
struct request {
  uint8_t type;
  uint32_t id;
  uint32_t magic;
  uint16_t version;
  uint32_t credit;
  uint8_t scope;
  uint16_t columns, rows;
  uint16_t port;
  uint64_t offset;
  uint32_t length;
  uint32_t depth;
  uint16_t mode;
  uint8_t flags;
  struct text data;
  struct text name;
  // NUL-terminated and absolute.
  struct text path, destination;
  struct identity actor, owner;
  uint16_t attribute_count;
  struct attribute attributes[METADATA_LIMIT];
  struct spawn_request spawn;
};

/** @return false for a malformed payload. */
bool parse_request(uint8_t type, uint32_t id, uint8_t *payload, uint32_t length, struct request *request);

enum { FRAME_INCOMPLETE = 0, FRAME_BROKEN = -1 };
/** Examines the start of a buffer. @return length of the first complete frame, or one of the above. */
int32_t frame_length(const uint8_t *bytes, size_t length);

uint16_t load_u16(const uint8_t *bytes);
uint32_t load_u32(const uint8_t *bytes);
uint64_t load_u64(const uint8_t *bytes);

/** Appends to a buffer; on overflow it drops the value and sets `is_full`. */
struct writer {
  uint8_t *bytes;
  size_t length, capacity;
  bool is_full;
};
void put_u8(struct writer *writer, uint8_t value);
void put_u16(struct writer *writer, uint16_t value);
void put_u32(struct writer *writer, uint32_t value);
void put_u64(struct writer *writer, uint64_t value);
void put_bytes(struct writer *writer, const void *bytes, size_t length);
void put_text(struct writer *writer, const char *text);
void put_text_n(struct writer *writer, const char *text, size_t length);

#endif
