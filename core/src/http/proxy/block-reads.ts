import type { OnReadOpts } from "node:net";

/** What a connection that brings little is read into, and copied from at once: it holds a block only after a large read. */
const SMALL = Buffer.allocUnsafeSlow(16 * 1024);
const BLOCK_BYTES = 256 * 1024;
/** Free blocks that are kept. */
const MOST_FREE = 16;

const free: Buffer[] = [];
/** Blocks whose bytes are in use, by their memory. Those that nobody releases are left to the collector. */
const lent = new WeakMap<ArrayBufferLike, Buffer>();

/**
 * Has a socket that brings much be read in blocks that are used again. Node reads 64 KiB at a time into new memory,
 * which costs more than the copying.
 * @param receive gets pieces that are its own, until it releases them by `releaseBlock`.
 */
export function blockReads(receive: (bytes: Buffer) => void): OnReadOpts {
  let into: Buffer = SMALL;
  return {
    buffer: () => into,
    callback(count) {
      const read = into;
      const bytes = read.subarray(0, count);
      if (count < SMALL.length || read === SMALL) {
        if (read !== SMALL) putBack(read);
        into = count === SMALL.length ? takeBlock() : SMALL;
        receive(Buffer.from(bytes));
      } else {
        lent.set(read.buffer, read);
        into = takeBlock();
        receive(bytes);
      }
      return true;
    },
  };
}

/** True of a piece whose block waits for `releaseBlock`. */
export function isLent({ buffer }: Buffer): boolean {
  return lent.has(buffer);
}

/** Gives the block of a piece back, all of which has been used. Nobody may look at the piece, or any other of it, again. */
export function releaseBlock({ buffer }: Buffer): void {
  const block = lent.get(buffer);
  if (block === undefined) return;
  lent.delete(buffer);
  putBack(block);
}

function takeBlock(): Buffer {
  return free.pop() ?? Buffer.allocUnsafeSlow(BLOCK_BYTES);
}

function putBack(block: Buffer): void {
  if (free.length < MOST_FREE) free.push(block);
}
