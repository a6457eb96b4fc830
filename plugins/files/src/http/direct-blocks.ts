import type { PositionalReads } from "@coppice/core/backend";
import type { ByteRange } from "../headers/byte-ranges.js";

/** Shared by all downloads: a block each costs memory, and larger ones are faster only while few are read. */
const MEMORY_BYTES = 16 * 2 ** 20;
const LARGEST_BLOCK_BYTES = 2 ** 19;
const SMALLEST_BLOCK_BYTES = 2 ** 16;
const BLOCKS_EACH = 2;

let active = 0;

/**
 * Reads a range, a block ahead of its consumer. A block is valid until the next one is asked for: a pipeline asks when
 * a block that fills its stream's buffer has left it, and the smallest block does.
 */
export async function* blocksOf(
  file: PositionalReads,
  { start, length }: ByteRange,
): AsyncGenerator<Uint8Array> {
  active++;
  const share = 2 ** Math.floor(Math.log2(MEMORY_BYTES / BLOCKS_EACH / active));
  const blockBytes = Math.min(LARGEST_BLOCK_BYTES, Math.max(SMALLEST_BLOCK_BYTES, share));
  const blocks = Array.from({ length: BLOCKS_EACH }, () => Buffer.allocUnsafeSlow(blockBytes));
  let position = start;
  let turn = 0;
  const end = start + length;
  const read = async (): Promise<Uint8Array> => {
    const block = blocks[turn++ % BLOCKS_EACH]!.subarray(0, end - position);
    const count = await file.read(block, position);
    position += count;
    const bytes = block.subarray(0, count);
    // Of a file that is cut and grows again: too small to hold the consumer up until it has left.
    return count < SMALLEST_BLOCK_BYTES ? Buffer.from(bytes) : bytes;
  };
  const readNext = (): Promise<Uint8Array> => {
    const block = read();
    // Its error is thrown when the consumer asks for it.
    block.catch(() => undefined);
    return block;
  };
  let next = readNext();
  try {
    for (;;) {
      const block = await next;
      if (block.byteLength === 0) return;
      // Beyond the end this reads nothing.
      next = readNext();
      yield block;
    }
  } finally {
    active--;
    // The memory, and the file, are in use until then.
    await next.catch(() => undefined);
  }
}
