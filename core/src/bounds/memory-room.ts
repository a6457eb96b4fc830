/** Who holds memory of the server. */
interface MemoryHolder {
  readonly tenant: string;
  readonly sandbox: string;
  /** Frees what it holds: there is no room, and nobody holds more. */
  readonly giveUp: () => void;
}

/** Bytes that are not counted of what is held at one place: mostly there are no more. */
const FREE_BYTES = 64 * 1024;

/**
 * Memory for what waits for somebody else, who may never come. Where it is full, that of the tenant with the most, in it
 * of the sandbox with the most, and there of the holder with the most, is given up. So none that holds little loses
 * anything because another one holds everything.
 */
export class MemoryRoom {
  readonly #mostBytes: number;
  readonly #held = new Set<HeldMemory>();
  #usedBytes = 0;

  constructor(mostBytes: number) {
    this.#mostBytes = mostBytes;
  }

  open(holder: MemoryHolder): HeldMemory {
    const held: HeldMemory = new HeldMemory(holder, (by) => this.#change(held, by));
    return held;
  }

  #change(held: HeldMemory, by: number): void {
    this.#usedBytes += by;
    if (held.bytes > 0) this.#held.add(held);
    else this.#held.delete(held);
    while (this.#usedBytes > this.#mostBytes && this.#held.size > 0) this.#giveUpMost();
  }

  #giveUpMost(): void {
    const ofTenant = largest(this.#held, ({ holder }) => holder.tenant);
    const ofSandbox = largest(ofTenant, ({ holder }) => holder.sandbox);
    const [first, ...others] = ofSandbox;
    const most = others.reduce((one, other) => (other.bytes > (one?.bytes ?? 0) ? other : one), first);
    most?.empty();
    most?.holder.giveUp();
  }
}

/** What one holder has of the room. */
export class HeldMemory {
  readonly holder: MemoryHolder;
  readonly #changed: (by: number) => void;
  #bytes = 0;
  /** Counts how often it was emptied. */
  #emptied = 0;

  constructor(holder: MemoryHolder, changed: (by: number) => void) {
    this.holder = holder;
    this.#changed = changed;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** A place for something until the disposal, or until it is given up. It is empty at first. */
  place(): MemoryPlace {
    const emptied = this.#emptied;
    let counted = 0;
    const resize = (toBytes: number): void => {
      if (this.#emptied !== emptied) return;
      const before = counted;
      counted = toBytes > FREE_BYTES ? toBytes : 0;
      this.#change(counted - before);
    };
    return { resize, [Symbol.dispose]: () => resize(0) };
  }

  /** Gives back everything. What is at its places from now on does not count. */
  empty(): void {
    this.#emptied += 1;
    this.#change(-this.#bytes);
  }

  #change(by: number): void {
    if (by === 0) return;
    this.#bytes += by;
    this.#changed(by);
  }
}

export interface MemoryPlace extends Disposable {
  /** Sets what it holds. */
  readonly resize: (toBytes: number) => void;
}

/** Those that have most together, of a key. */
function largest(all: Iterable<HeldMemory>, keyOf: (held: HeldMemory) => string): readonly HeldMemory[] {
  const groups = Map.groupBy(all, keyOf);
  const sizeOf = (group: readonly HeldMemory[]): number => group.reduce((sum, { bytes }) => sum + bytes, 0);
  return [...groups.values()].reduce((one, other) => (sizeOf(other) > sizeOf(one) ? other : one), []);
}

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
