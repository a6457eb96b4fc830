import { closeSync, openSync, readSync } from "node:fs";

const piece = Buffer.alloc(4096);

/**
 * The beginning of a file of the kernel, of 4 KiB. The kernel has it in memory: a thread of the pool would cost ten times as
 * much. Undefined when it is missing.
 */
export function readAtOnce(path: string): string | undefined {
  let descriptor: number | undefined;
  try {
    descriptor = openSync(path, "r");
    return piece.toString("latin1", 0, readSync(descriptor, piece));
  } catch {
    return undefined;
  } finally {
    if (descriptor !== undefined) closeSync(descriptor);
  }
}
