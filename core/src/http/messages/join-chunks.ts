import type { IncomingMessage } from "node:http";

/** Longer chunks are passed on as they are. */
const SMALL_BYTES = 1024;
/** Bytes of the connection, after which its content has to be a part of them. */
const CHECKED_BYTES = 1024 * 1024;
const LEAST_SHARE = 1 / 4;

/**
 * Joins small chunks of a body that come together: each piece costs its readers a microsecond, or several.
 * @param onWasteful called, once or more, when the body was framing for the most part: chunks of a byte.
 */
export function joinChunks(message: IncomingMessage, onWasteful: () => void): void {
  const push = message.push.bind(message);
  const { socket } = message;
  const startBytes = socket.bytesRead;
  let contentBytes = 0;
  let small: Buffer[] = [];
  let smallBytes = 0;

  const flush = (): void => {
    if (small.length === 0) return;
    const joined = small.length === 1 ? small[0] : Buffer.concat(small, smallBytes);
    small = [];
    smallBytes = 0;
    if (!message.destroyed) push(joined);
  };
  const flushLater = (): void => {
    flush();
    const bytes = socket.bytesRead - startBytes;
    if (bytes > CHECKED_BYTES && contentBytes < bytes * LEAST_SHARE) onWasteful();
  };
  message.push = (chunk: Buffer | null): boolean => {
    contentBytes += chunk?.length ?? 0;
    if (chunk === null || chunk.length > SMALL_BYTES) {
      flush();
      return push(chunk);
    }
    if (small.length === 0) process.nextTick(flushLater);
    small.push(chunk);
    smallBytes += chunk.length;
    return message.readableLength + smallBytes < message.readableHighWaterMark;
  };
}
