// A fuzz target for libFuzzer: splitting and parsing accesses no memory outside of the input. Every string of a parsed
// request is read to its end, as the agent does.
#include <stdlib.h>
#include <string.h>

#include "frames.h"

static volatile size_t sink;

static void read_text(struct text text) {
  for (uint32_t index = 0; index < text.length; index++) sink += (unsigned char)text.bytes[index];
}

static void read_strings(char **strings) {
  for (; strings != NULL && *strings != NULL; strings++) sink += strlen(*strings);
}

static void read_request(const struct request *request) {
  read_text(request->data);
  read_text(request->name);
  read_text(request->actor.name);
  read_text(request->owner.name);
  if (request->path.length > 0 && strlen(request->path.bytes) != request->path.length) abort();
  if (request->destination.length > 0 && strlen(request->destination.bytes) != request->destination.length) abort();
  for (unsigned index = 0; index < request->attribute_count; index++) {
    sink += strlen(request->attributes[index].name.bytes);
    read_text(request->attributes[index].value);
  }
  if (request->type != SPAWN) return;
  read_text(request->spawn.label);
  read_text(request->spawn.identity.name);
  if (strlen(request->spawn.directory.bytes) != request->spawn.directory.length) abort();
  read_strings(request->spawn.arguments);
  read_strings(request->spawn.variables);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct request request;
  // A separate allocation of the exact size, so that sanitizers see a read past its end.
  uint8_t *bytes = malloc(size + 1);
  if (bytes == NULL) return 0;
  uint8_t *frames = realloc(bytes, size > 0 ? size : 1);
  if (frames == NULL) frames = bytes;
  memcpy(frames, data, size);
  for (size_t position = 0; position < size;) {
    int32_t length = frame_length(frames + position, size - position);
    if (length <= 0) break;
    if ((size_t)length > size - position || length < HEADER_BYTES) abort();
    uint8_t *frame = frames + position;
    if (parse_request(frame[4], load_u32(frame + 5), frame + HEADER_BYTES, (uint32_t)length - HEADER_BYTES, &request)) {
      read_request(&request);
    }
    position += (size_t)length;
  }
  free(frames);
  return 0;
}

#ifdef COPPICE_FUZZ_MAIN
// For compilers without libFuzzer: mutates the frames below with a seeded generator. usage: SEED ROUNDS
static uint64_t state;

static uint32_t next(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33);
}

static size_t generate(uint8_t *bytes, size_t capacity) {
  static const uint8_t types[] = {HELLO,  PROCESSES, SPAWN, INPUT, INPUT_END, CREDIT,         SIGNAL, RESIZE, DISCARD, RELEASE, ACCOUNT,
                                  STAT,   LIST,      OPEN,  READ,  WRITE,     MAKE_DIRECTORY, MOVE,   REMOVE, CHANGE,  WATCH,   DIAL};
  size_t length = HEADER_BYTES + next() % (capacity - HEADER_BYTES);
  for (size_t index = 0; index < length; index++) {
    // Small numbers often form valid lengths and counts.
    bytes[index] = (uint8_t)(next() % 4 == 0 ? next() : next() % 3 == 0 ? '/' : next() % 6);
  }
  struct writer header = {bytes, 0, HEADER_BYTES, false};
  put_u32(&header, next() % 64 == 0 ? next() : (uint32_t)length - 4);
  put_u8(&header, types[next() % sizeof types]);
  put_u32(&header, next() % 8 == 0 ? 0 : next());
  return length;
}

int main(int count, char **words) {
  if (count != 3) return 64;
  state = strtoull(words[1], NULL, 10);
  uint8_t bytes[2048];
  for (unsigned long left = strtoul(words[2], NULL, 10); left > 0; left--) {
    LLVMFuzzerTestOneInput(bytes, generate(bytes, next() % 2 == 0 ? 64 : sizeof bytes));
  }
  return 0;
}
#endif
