// Output that was sent and that the server has not given credit for: the next server gets it again.
#include <stdlib.h>
#include <string.h>

#include "agent.h"

// An entry: the type of its frame, the length, the bytes.
enum { ENTRY_BYTES = 5, KEPT_LIMIT = 4 * 1024 * 1024 };

void kept_free(struct kept *kept) {
  free(kept->bytes);
  *kept = (struct kept){0};
}

static bool make_room(struct kept *kept, uint32_t bytes) {
  if (kept->start > 0) {
    memmove(kept->bytes, kept->bytes + kept->start, kept->end - kept->start);
    kept->end -= kept->start;
    kept->sent -= kept->start;
    kept->start = 0;
  }
  uint32_t capacity = kept->capacity > 0 ? kept->capacity : 4096;
  while (capacity < kept->end + bytes) capacity *= 2;
  if (capacity == kept->capacity) return true;
  uint8_t *grown = capacity > KEPT_LIMIT ? NULL : realloc(kept->bytes, capacity);
  if (grown == NULL) return false;
  kept->bytes = grown;
  kept->capacity = capacity;
  return true;
}

void kept_add(struct kept *kept, uint8_t type, const uint8_t *data, uint32_t length) {
  if (!kept->is_on) return;
  // Without memory for copies, output is sent without them: a lost connection then loses what it had in transit.
  if (kept->end + ENTRY_BYTES + length > kept->capacity && !make_room(kept, ENTRY_BYTES + length)) {
    return kept_free(kept);
  }
  uint8_t *entry = kept->bytes + kept->end;
  entry[0] = type;
  memcpy(entry + 1, &length, sizeof length);
  memcpy(entry + ENTRY_BYTES, data, length);
  kept->end += ENTRY_BYTES + length;
  kept->sent = kept->end;
}

static uint32_t length_at(const struct kept *kept, uint32_t position) {
  uint32_t length;
  memcpy(&length, kept->bytes + position + 1, sizeof length);
  return length;
}

void kept_pay(struct kept *kept, uint32_t bytes) {
  if (!kept->is_on) return;
  // The first credit of a connection is a grant for new output. It confirms no output that was sent.
  if (!kept->is_granted) {
    kept->is_granted = true;
    return;
  }
  kept->paid += bytes;
  while (kept->start < kept->sent) {
    uint32_t length = length_at(kept, kept->start);
    if (kept->paid < length + FRAME_COST) break;
    kept->paid -= length + FRAME_COST;
    kept->from += length;
    kept->start += ENTRY_BYTES + length;
  }
  if (kept->start < kept->end) return;
  free(kept->bytes);
  kept->bytes = NULL;
  kept->capacity = kept->start = kept->end = kept->sent = 0;
}

void kept_rewind(struct kept *kept) {
  kept->sent = kept->start;
  kept->paid = 0;
  kept->is_granted = false;
}

bool kept_is_due(const struct kept *kept) { return kept->sent < kept->end; }

bool kept_send(struct kept *kept, struct object *object) {
  uint32_t length = length_at(kept, kept->sent);
  if (object->credit < length + FRAME_COST || room() < REPLY_BYTES + length + HEADER_BYTES) return false;
  struct writer frame = begin_frame(kept->bytes[kept->sent], object->id);
  put_bytes(&frame, kept->bytes + kept->sent + ENTRY_BYTES, length);
  finish_frame(&frame);
  object->credit -= length + FRAME_COST;
  kept->sent += ENTRY_BYTES + length;
  return true;
}
