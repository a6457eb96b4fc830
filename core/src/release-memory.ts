/** What is smaller is left to the collector. */
const WORTH_BYTES = 16 * 1024;

/**
 * Gives memory back now, which the collector would find only when it goes through the whole heap: it has to do that
 * every few dozen megabytes of such memory. The buffer is empty then.
 * @param buffer nobody else reads. Left alone unless it is the whole of its memory, so that no other is in it.
 */
export function releaseMemory({ buffer, byteLength }: Buffer): void {
  if (byteLength < WORTH_BYTES || byteLength !== buffer.byteLength || buffer instanceof SharedArrayBuffer)
    return;
  buffer.transfer(0);
}
