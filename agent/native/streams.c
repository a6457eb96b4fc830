// Streams: bytes between descriptors and the server.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"
#include "platform.h"

bool can_relay(const struct object *object) {
  return is_connected() && object->credit > FRAME_COST && room() >= REPLY_BYTES + CHUNK_BYTES + HEADER_BYTES;
}

int relay_source(struct source *source, struct object *object, struct kept *kept) {
  if (object->credit <= FRAME_COST || room() < REPLY_BYTES + CHUNK_BYTES + HEADER_BYTES) return 0;
  size_t length = (size_t)object->credit - FRAME_COST;
  if (length > RELAY_BYTES) length = RELAY_BYTES;
  size_t space = room() - REPLY_BYTES - HEADER_BYTES;
  if (length > space) length = space;
  struct writer frame = begin_frame(source->frame, object->id);
  size_t filled = 0;
  // A terminal yields a page per read, but a frame costs the server the same for any size.
  while (filled < length) {
    ssize_t count = read(source->fd, frame.bytes + frame.length, length - filled);
    if (count <= 0 && filled > 0) break;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
    if (count <= 0) return -1;
    frame.length += (size_t)count;
    filled += (size_t)count;
  }
  if (kept != NULL) kept_add(kept, source->frame, frame.bytes + frame.length - filled, (uint32_t)filled);
  finish_frame(&frame);
  if (filled >= CHUNK_BYTES && !source->is_wide) {
    source->is_wide = true;
    platform_widen_pipe(source->fd, RELAY_BYTES);
  }
  object->credit -= (uint32_t)filled + FRAME_COST;
  return 1;
}

void source_close(struct source *source) {
  if (source->fd >= 0) close(source->fd);
  source->fd = -1;
}

void sink_close(struct sink *sink) {
  if (sink->fd >= 0) close(sink->fd);
  sink->fd = -1;
  free(sink->buffer);
  sink->buffer = NULL;
  sink->start = sink->length = 0;
}

bool sink_flush(struct sink *sink) {
  while (sink->length > 0) {
    ssize_t count = write(sink->fd, sink->buffer + sink->start, sink->length);
    if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    sink->start += (uint32_t)count;
    sink->length -= (uint32_t)count;
    sink->taken += (uint32_t)count;
  }
  free(sink->buffer);
  sink->buffer = NULL;
  sink->start = 0;
  return true;
}

void sink_acknowledge(struct sink *sink, uint32_t id) {
  if (sink->taken == 0 || (sink->length > 0 && sink->taken < INPUT_WINDOW_BYTES / 2)) return;
  send_u32(REPLY_TAKEN, id, sink->taken);
  sink->window += sink->taken;
  sink->taken = 0;
}

bool sink_put(struct sink *sink, const uint8_t *data, uint32_t length) {
  while (sink->length == 0 && length > 0) {
    ssize_t count = write(sink->fd, data, length);
    if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return false;
    if (count < 0) break;
    sink->taken += (uint32_t)count;
    data += count;
    length -= (uint32_t)count;
  }
  if (length == 0) return true;
  if (sink->buffer == NULL) sink->buffer = malloc(INPUT_WINDOW_BYTES);
  if (sink->buffer == NULL) return false;
  if (sink->start > 0) memmove(sink->buffer, sink->buffer + sink->start, sink->length);
  sink->start = 0;
  memcpy(sink->buffer + sink->length, data, length);
  sink->length += length;
  return true;
}
