/** Smaller buffers are left to the collector. */
const WORTH_BYTES = 16 * 1024;

/**
 * Frees a buffer's memory at once. The collector would find it only by a full pass over the heap, needed every few
 * dozen megabytes of such memory. The buffer is empty afterwards.
 * @param buffer without other readers. Left alone unless it is the whole of its memory, so that no other buffer
 * shares it.
 */
export function releaseMemory({ buffer, byteLength }: Buffer): void {
  if (byteLength < WORTH_BYTES || byteLength !== buffer.byteLength || buffer instanceof SharedArrayBuffer)
    return;
  buffer.transfer(0);
}
