import { close, fstat, read } from "node:fs";
import { statfs } from "node:fs/promises";
import { promisify } from "node:util";
import type { PositionalReads, SandboxError } from "@coppice/core/backend";

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

interface DirectFileOptions {
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

/** Of all sandboxes. The rest of the server needs threads of Node's pool, too, which has four. */
const MOST_READS = 2;
/** A read that takes longer is held up, by the disk or by a program inside. */
const PATIENCE_MS = 100;

interface Turn {
  readonly owner: object;
  readonly beganMs: number;
}

const underWay = new Set<Turn>();
const waiting = new Set<{
  readonly owner: object;
  readonly settle: (end: (() => void) | undefined) => void;
}>();

/**
 * Waits for a turn to read a file in a thread of the pool, one at a time for each owner. A program inside can hold up a
 * read of its file, and that thread, for a minute: it need only free a range of a million pieces.
 * @returns the function that ends the turn; undefined when the reads before it take too long.
 */
export function takeTurn(owner: object): Promise<(() => void) | undefined> {
  if (mayRead(owner)) return Promise.resolve(begin(owner));
  if (isHeldUp(owner)) return Promise.resolve(undefined);
  return new Promise((resolve) => {
    const waiter = {
      owner,
      settle(end: (() => void) | undefined) {
        clearTimeout(timer);
        waiting.delete(waiter);
        resolve(end);
      },
    };
    const timer = setTimeout(() => waiter.settle(undefined), PATIENCE_MS);
    waiting.add(waiter);
  });
}

function begin(owner: object): () => void {
  const turn = { owner, beganMs: performance.now() };
  underWay.add(turn);
  return () => {
    underWay.delete(turn);
    for (const waiter of waiting) if (mayRead(waiter.owner)) waiter.settle(begin(waiter.owner));
  };
}

function mayRead(owner: object): boolean {
  return underWay.size < MOST_READS && turnOf(owner) === undefined;
}

function isHeldUp(owner: object): boolean {
  const own = turnOf(owner);
  const turns = own === undefined ? [...underWay] : [own];
  return turns.every(({ beganMs }) => performance.now() - beganMs > PATIENCE_MS);
}

function turnOf(owner: object): Turn | undefined {
  for (const turn of underWay) if (turn.owner === owner) return turn;
  return undefined;
}

let last: Promise<void> = Promise.resolve();

/**
 * Closes a descriptor of an agent that has ended, one after another in one thread of Node's pool: the last close of a
 * removed file frees its space, which takes a minute where a program inside has cut it into a million pieces.
 */
export function closeInTurn(descriptor: number): Promise<void> {
  last = last.then(() => new Promise((resolve) => close(descriptor, () => resolve())));
  return last;
}
