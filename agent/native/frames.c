#include "frames.h"

#include <string.h>

uint16_t load_u16(const uint8_t *bytes) { return (uint16_t)(bytes[0] | bytes[1] << 8); }

uint32_t load_u32(const uint8_t *bytes) { return load_u16(bytes) | (uint32_t)load_u16(bytes + 2) << 16; }

uint64_t load_u64(const uint8_t *bytes) { return load_u32(bytes) | (uint64_t)load_u32(bytes + 4) << 32; }

int32_t frame_length(const uint8_t *bytes, size_t length) {
  if (length < 4) return FRAME_INCOMPLETE;
  uint32_t rest = load_u32(bytes);
  if (rest < HEADER_BYTES - 4 || rest > PAYLOAD_LIMIT + HEADER_BYTES - 4) return FRAME_BROKEN;
  return length - 4 < rest ? FRAME_INCOMPLETE : (int32_t)(rest + 4);
}

/** Reads from a payload; past its end every value is 0 and `is_broken` is set. */
struct reader {
  uint8_t *bytes;
  uint32_t position, length;
  bool is_broken;
};

static uint8_t *take(struct reader *reader, uint32_t length) {
  if (reader->is_broken || length > reader->length - reader->position) {
    reader->is_broken = true;
    return NULL;
  }
  uint8_t *bytes = reader->bytes + reader->position;
  reader->position += length;
  return bytes;
}

static uint8_t take_u8(struct reader *reader) {
  const uint8_t *bytes = take(reader, 1);
  return bytes ? bytes[0] : 0;
}

static uint16_t take_u16(struct reader *reader) {
  const uint8_t *bytes = take(reader, 2);
  return bytes ? load_u16(bytes) : 0;
}

static uint32_t take_u32(struct reader *reader) {
  const uint8_t *bytes = take(reader, 4);
  return bytes ? load_u32(bytes) : 0;
}

static uint64_t take_u64(struct reader *reader) {
  const uint8_t *bytes = take(reader, 8);
  return bytes ? load_u64(bytes) : 0;
}

static struct text take_n(struct reader *reader, uint32_t length) {
  const uint8_t *bytes = take(reader, length);
  return bytes ? (struct text){(const char *)bytes, length} : (struct text){"", 0};
}

static struct text take_text(struct reader *reader) { return take_n(reader, take_u16(reader)); }

static struct text take_rest(struct reader *reader) { return take_n(reader, reader->length - reader->position); }

/** Moves a string over its length prefix, so that it can be NUL-terminated. */
static struct text take_string(struct reader *reader, unsigned prefix) {
  uint32_t length = prefix == 4 ? take_u32(reader) : take_u16(reader);
  uint8_t *bytes = take(reader, length);
  if (bytes == NULL) return (struct text){"", 0};
  if (memchr(bytes, 0, length) != NULL) reader->is_broken = true;
  char *start = (char *)bytes - prefix;
  memmove(start, bytes, length);
  start[length] = 0;
  return (struct text){start, length};
}

static struct text take_path(struct reader *reader) {
  struct text path = take_string(reader, 2);
  if (path.length == 0 || path.length > PATH_LIMIT || path.bytes[0] != '/') reader->is_broken = true;
  return path;
}

static void take_identity(struct reader *reader, struct identity *identity) {
  identity->kind = take_u8(reader);
  if (identity->kind == IDENTITY_NAME) {
    identity->name = take_string(reader, 2);
  } else if (identity->kind == IDENTITY_NUMBERS) {
    identity->uid = take_u32(reader);
    identity->gid = take_u32(reader);
    identity->group_count = take_u16(reader);
    if (identity->group_count > IDENTITY_GROUPS_LIMIT) {
      reader->is_broken = true;
      return;
    }
    for (unsigned index = 0; index < identity->group_count; index++) identity->groups[index] = take_u32(reader);
    // For chown(2) and setresuid(2), -1 means no change.
    if (identity->uid == UINT32_MAX || identity->gid == UINT32_MAX) reader->is_broken = true;
  } else if (identity->kind != IDENTITY_SELF) {
    reader->is_broken = true;
  }
}

static void take_metadata(struct reader *reader, struct request *request) {
  request->attribute_count = take_u16(reader);
  if (request->attribute_count > METADATA_LIMIT) {
    reader->is_broken = true;
    request->attribute_count = 0;
  }
  for (unsigned index = 0; index < request->attribute_count; index++) {
    request->attributes[index].name = take_string(reader, 2);
    request->attributes[index].value = take_text(reader);
  }
}

static char **take_strings(struct reader *reader, char **strings, unsigned limit) {
  unsigned count = take_u16(reader);
  if (count > limit) reader->is_broken = true;
  unsigned index = 0;
  // execve(2) does not change the strings, but its prototype predates const.
  for (; index < count && !reader->is_broken; index++) strings[index] = (char *)take_string(reader, 4).bytes;
  strings[index] = NULL;
  return strings;
}

static void take_spawn(struct reader *reader, struct spawn_request *spawn) {
  // With a free place before them: see `execute`.
  static char *arguments[1 + ARGUMENTS_LIMIT + 1];
  static char *variables[VARIABLES_LIMIT + 1];
  spawn->flags = take_u8(reader);
  spawn->columns = take_u16(reader);
  spawn->rows = take_u16(reader);
  spawn->credit = take_u32(reader);
  spawn->mask = take_u16(reader);
  take_identity(reader, &spawn->identity);
  spawn->directory = take_string(reader, 2);
  if (spawn->directory.length > PATH_LIMIT) reader->is_broken = true;
  if (spawn->directory.length > 0 && spawn->directory.bytes[0] != '/') reader->is_broken = true;
  spawn->label = take_text(reader);
  if (spawn->label.length > PATH_LIMIT) reader->is_broken = true;
  spawn->limit_count = take_u8(reader);
  if (spawn->limit_count > LIMITS_LIMIT) {
    reader->is_broken = true;
    spawn->limit_count = 0;
  }
  for (unsigned index = 0; index < spawn->limit_count; index++) {
    struct resource_limit *limit = &spawn->limits[index];
    limit->resource = take_u8(reader);
    limit->soft = take_u64(reader);
    limit->hard = take_u64(reader);
  }
  spawn->arguments = take_strings(reader, arguments + 1, ARGUMENTS_LIMIT);
  spawn->variables = take_strings(reader, variables, VARIABLES_LIMIT);
  if (spawn->arguments[0] == NULL) reader->is_broken = true;
}

bool parse_request(uint8_t type, uint32_t id, uint8_t *payload, uint32_t length, struct request *request) {
  struct reader reader = {payload, 0, length, false};
  // Everything but the two arrays, which are large and rarely used.
  memset(request, 0, offsetof(struct request, attributes));
  request->type = type;
  request->id = id;
  if ((id == 0) != (type == HELLO || type == PROCESSES || type == END)) return false;
  bool is_about_file = type >= STAT && type <= WATCH && type != READ;
  if (is_about_file) take_identity(&reader, &request->actor);
  if (type == WRITE || type == MAKE_DIRECTORY || type == MOVE) take_identity(&reader, &request->owner);
  if (is_about_file) request->path = take_path(&reader);
  switch (type) {
    case HELLO:
      request->magic = take_u32(&reader);
      request->version = take_u16(&reader);
      break;
    case PROCESSES:
    case INPUT_END:
    case DISCARD:
    case RELEASE:
    case SHARE:
    case END:
    case STAT:
    case OPEN:
    case REMOVE:
    case MAKE_DIRECTORY:
      break;
    case SPAWN:
      memset(&request->spawn, 0, sizeof request->spawn);
      take_spawn(&reader, &request->spawn);
      break;
    case INPUT:
      request->data = take_rest(&reader);
      break;
    case CREDIT:
      request->credit = take_u32(&reader);
      break;
    case SIGNAL:
      request->scope = take_u8(&reader);
      request->name = take_text(&reader);
      break;
    case RESIZE:
      request->columns = take_u16(&reader);
      request->rows = take_u16(&reader);
      break;
    case ACCOUNT:
      request->name = take_string(&reader, 2);
      break;
    case LIST:
      request->depth = take_u32(&reader);
      request->credit = take_u32(&reader);
      break;
    case READ:
      request->offset = take_u64(&reader);
      request->length = take_u32(&reader);
      break;
    case WRITE:
      request->mode = take_u16(&reader);
      request->flags = take_u8(&reader);
      take_metadata(&reader, request);
      request->data = take_rest(&reader);
      break;
    case MOVE:
      request->destination = take_path(&reader);
      break;
    case CHANGE:
      request->flags = take_u8(&reader);
      request->mode = take_u16(&reader);
      take_identity(&reader, &request->owner);
      take_metadata(&reader, request);
      break;
    case WATCH:
      request->flags = take_u8(&reader);
      request->credit = take_u32(&reader);
      break;
    case DIAL:
      request->port = take_u16(&reader);
      request->credit = take_u32(&reader);
      break;
    default:
      return false;
  }
  return !reader.is_broken && reader.position == reader.length;
}

void put_bytes(struct writer *writer, const void *bytes, size_t length) {
  if (writer->is_full || length > writer->capacity - writer->length) {
    writer->is_full = true;
    return;
  }
  if (length > 0) memcpy(writer->bytes + writer->length, bytes, length);
  writer->length += length;
}

void put_u8(struct writer *writer, uint8_t value) { put_bytes(writer, &value, 1); }

void put_u16(struct writer *writer, uint16_t value) {
  uint8_t bytes[] = {(uint8_t)value, (uint8_t)(value >> 8)};
  put_bytes(writer, bytes, sizeof bytes);
}

void put_u32(struct writer *writer, uint32_t value) {
  put_u16(writer, (uint16_t)value);
  put_u16(writer, (uint16_t)(value >> 16));
}

void put_u64(struct writer *writer, uint64_t value) {
  put_u32(writer, (uint32_t)value);
  put_u32(writer, (uint32_t)(value >> 32));
}

void put_text_n(struct writer *writer, const char *text, size_t length) {
  if (length > UINT16_MAX) length = UINT16_MAX;
  put_u16(writer, (uint16_t)length);
  put_bytes(writer, text, length);
}

void put_text(struct writer *writer, const char *text) { put_text_n(writer, text, strlen(text)); }
