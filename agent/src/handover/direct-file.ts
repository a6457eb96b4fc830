import { close, fstat, read } from "node:fs";
import { statfs } from "node:fs/promises";
import { promisify } from "node:util";
import { SandboxError, type PositionalReads } from "@coppice/core/backend";

const statOf = promisify(fstat);

/** `f_type` of statfs(2): file systems whose reads end by themselves and need no rights of the reader. */
const TYPES: ReadonlySet<number> = new Set([
  0xef53, // ext2, ext3, ext4
  0x5846_5342, // XFS
  0x9123_683e, // Btrfs
  0xf2f5_2010, // F2FS
  0x2fc1_2fc1, // ZFS
  0x794c_7630, // overlay
  0x0102_1994, // tmpfs
]);

/** Whether a descriptor from a sandbox is an ordinary file: a replaced agent may name any of its descriptors. */
export async function isPlainFile(descriptor: number): Promise<boolean> {
  if (!(await statOf(descriptor)).isFile()) return false;
  return TYPES.has((await statfs(`/proc/self/fd/${descriptor}`)).type);
}

/** Reads a file by a descriptor that an agent opened. */
export class DirectFile implements PositionalReads {
  readonly #descriptor: number;
  readonly #errorOf: (error: NodeJS.ErrnoException) => SandboxError;
  #reads = 0;
  #end: SandboxError | undefined;

  /** @param descriptor owned by this. */
  constructor(descriptor: number, errorOf: (error: NodeJS.ErrnoException) => SandboxError) {
    this.#descriptor = descriptor;
    this.#errorOf = errorOf;
  }

  read(target: Uint8Array, position: number): Promise<number> {
    return new Promise((resolve, reject) => {
      if (this.#end !== undefined) {
        reject(this.#end);
        return;
      }
      this.#reads++;
      read(this.#descriptor, target, 0, target.byteLength, position, (error, count) => {
        this.#reads--;
        this.#closeWhenIdle();
        if (error === null) resolve(count);
        else reject(this.#errorOf(error));
      });
    });
  }

  /** Ends later reads with this reason. The descriptor is closed after the reads that are under way. */
  close(reason: SandboxError): void {
    if (this.#end !== undefined) return;
    this.#end = reason;
    this.#closeWhenIdle();
  }

  #closeWhenIdle(): void {
    if (this.#end !== undefined && this.#reads === 0) close(this.#descriptor);
  }
}
