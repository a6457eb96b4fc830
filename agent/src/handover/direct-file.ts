import { close, fstat, read } from "node:fs";
import { statfs } from "node:fs/promises";
import { promisify } from "node:util";
import type { PositionalReads, SandboxError } from "@coppice/core/backend";
import { closeInTurn } from "./close-in-turn.js";
import { takeTurn } from "./read-turns.js";

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

export interface DirectFileOptions {
  /** Owned by the file. */
  readonly descriptor: number;
  /** Reads one at a time. */
  readonly owner: object;
  readonly errorOf: (error: NodeJS.ErrnoException) => SandboxError;
  /** Reads where no thread of this process should wait. */
  readonly elsewhere: PositionalReads["read"];
}

/** Reads a file by a descriptor that an agent opened. */
export class DirectFile implements PositionalReads {
  readonly #options: DirectFileOptions;
  #reads = 0;
  #end: SandboxError | undefined;
  #isLast = false;
  #isClosing = false;
  readonly #closed = Promise.withResolvers<void>();

  constructor(options: DirectFileOptions) {
    this.#options = options;
  }

  async read(target: Uint8Array, position: number): Promise<number> {
    const { elsewhere, owner } = this.#options;
    if (this.#end !== undefined) throw this.#end;
    // A turn may come after `close`.
    this.#reads++;
    try {
      const endTurn = await takeTurn(owner);
      if (endTurn === undefined) return await elsewhere(target, position);
      try {
        return await this.#read(target, position);
      } finally {
        endTurn();
      }
    } finally {
      this.#reads--;
      this.#closeWhenIdle();
    }
  }

  /** Ends later reads with this reason. Resolves when those under way are over and the descriptor is closed. */
  close(reason: SandboxError): Promise<void> {
    this.#end ??= reason;
    this.#closeWhenIdle();
    return this.#closed.promise;
  }

  /** As `close`, where the agent has closed its own. */
  lost(reason: SandboxError): void {
    this.#isLast = true;
    void this.close(reason);
  }

  #read(target: Uint8Array, position: number): Promise<number> {
    const { descriptor, errorOf } = this.#options;
    return new Promise((resolve, reject) => {
      read(descriptor, target, 0, target.byteLength, position, (error, count) => {
        if (error === null) resolve(count);
        else reject(errorOf(error));
      });
    });
  }

  #closeWhenIdle(): void {
    if (this.#end === undefined || this.#reads > 0 || this.#isClosing) return;
    this.#isClosing = true;
    const { descriptor } = this.#options;
    if (this.#isLast) void closeInTurn(descriptor).then(this.#closed.resolve);
    else close(descriptor, () => this.#closed.resolve());
  }
}
