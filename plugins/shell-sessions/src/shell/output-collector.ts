import type { Spool } from "@coppice/core";
import type { Output } from "@coppice/core/backend";

/** Size of the first piece of a stream; each further one is twice as large as the one before. */
const FIRST_BYTES = 4 * 1024;
/** A stream that fills a piece of this size goes to a file. */
const LARGEST_BYTES = 512 * 1024;
/** Full pieces of a stream that wait for the disk before its command waits as well. */
const MOST_WAITING = 2;

interface CollectorOptions {
  readonly maxBytes: number;
  /** Where more than about 1 MiB of a stream goes; it stays in memory when absent. */
  readonly spool?: Spool;
  /** Tenant whose share of the spool that is. */
  readonly owner?: string;
}

/** To be disposed of when it was read. */
export interface CollectedOutput extends AsyncDisposable {
  readonly stdout: BytePieces;
  readonly stderr: BytePieces;
  /** Some output was dropped: there was more than the limit, or no room on the disk. */
  readonly truncated: boolean;
}

/** Collects the output of a command up to a limit of each stream. */
export class OutputCollector implements AsyncDisposable {
  readonly #streams: { readonly stdout: StreamBytes; readonly stderr: StreamBytes };
  #isTruncated = false;

  constructor(options: CollectorOptions) {
    this.#streams = { stdout: new StreamBytes(options), stderr: new StreamBytes(options) };
  }

  /** Nothing more of either stream can be kept. */
  get isFull(): boolean {
    const { stdout, stderr } = this.#streams;
    return this.#isTruncated && stdout.leftBytes === 0 && stderr.leftBytes === 0;
  }

  /** Copies the bytes. @returns what to wait for before more is added; undefined for nothing. */
  add({ stream, data }: Output): Promise<void> | undefined {
    const bytes = this.#streams[stream === "stderr" ? "stderr" : "stdout"];
    if (data.length > bytes.leftBytes) this.#isTruncated = true;
    bytes.add(data.subarray(0, bytes.leftBytes));
    return bytes.room;
  }

  /** Everything that was added. Disposing of it disposes of the collector. */
  async result(): Promise<CollectedOutput> {
    const { stdout, stderr } = this.#streams;
    return {
      stdout: await stdout.pieces(),
      stderr: await stderr.pieces(),
      truncated: this.#isTruncated,
      [Symbol.asyncDispose]: () => this[Symbol.asyncDispose](),
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const { stdout, stderr } = this.#streams;
    await Promise.all([stdout[Symbol.asyncDispose](), stderr[Symbol.asyncDispose]()]);
  }
}

/**
 * The bytes of a stream, copied into large pieces, and from there to a file. V8 scans its heap again and again for
 * buffers that survive, and that takes longer than the copies.
 */
class StreamBytes implements AsyncDisposable {
  readonly #spool: Spool | undefined;
  readonly #owner: string | undefined;
  /** Full pieces that are not in the file. */
  #full: Buffer[] = [];
  /** Never empty once there is a byte: the last one is always in memory. */
  #current: Buffer = Buffer.alloc(0);
  #filled = 0;
  /** A piece whose bytes are in the file. */
  #spare: Buffer | undefined;
  #file: SpoolFile | undefined;
  #writing: Promise<void> | undefined;
  leftBytes: number;

  constructor({ maxBytes, spool, owner }: CollectorOptions) {
    this.leftBytes = maxBytes;
    this.#spool = spool;
    this.#owner = owner;
  }

  get room(): Promise<void> | undefined {
    return this.#full.length < MOST_WAITING ? undefined : this.#writing;
  }

  /** @param data at most as many bytes as are left. */
  add(data: Uint8Array): void {
    this.leftBytes -= data.length;
    for (let taken = 0; taken < data.length;) {
      if (this.#filled === this.#current.length) this.#grow();
      const part = data.subarray(taken, taken + this.#current.length - this.#filled);
      this.#current.set(part, this.#filled);
      this.#filled += part.length;
      taken += part.length;
    }
  }

  async pieces(): Promise<BytePieces> {
    await this.#writing;
    const last = this.#current.subarray(0, this.#filled);
    return new BytePieces(last.length > 0 ? [...this.#full, last] : this.#full, this.#file);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#full = [];
    await this.#writing;
    await this.#file?.[Symbol.asyncDispose]();
  }

  #grow(): void {
    const { length } = this.#current;
    if (length > 0) this.#full.push(this.#current);
    if (length === LARGEST_BYTES && this.#spool !== undefined) this.#writing ??= this.#write(this.#spool);
    const size = Math.max(FIRST_BYTES, Math.min(2 * length, LARGEST_BYTES));
    this.#current = this.#spare ?? Buffer.allocUnsafeSlow(size);
    this.#spare = undefined;
    this.#filled = 0;
  }

  /** Moves full pieces to the file until there are none. Never rejects. */
  async #write(spool: Spool): Promise<void> {
    try {
      this.#file ??= await spool.open(this.#owner);
      for (let piece = this.#full[0]; piece !== undefined; piece = this.#full[0]) {
        await this.#file.write(piece);
        this.#full.shift();
        if (piece.length === LARGEST_BYTES) this.#spare = piece;
      }
    } catch {
      // A full disk costs a part of the output, not the result of the command.
      this.leftBytes = 0;
    }
    this.#writing = undefined;
  }
}

type SpoolFile = Awaited<ReturnType<Spool["open"]>>;

/**
 * Bytes in the pieces in which they came, the first of them in a file when they are many: joining those of a large
 * output would take time and memory once more.
 */
export class BytePieces implements AsyncIterable<Uint8Array> {
  readonly #pieces: readonly Uint8Array[];
  readonly #file: SpoolFile | undefined;

  /** @param pieces what comes after the file: not empty, unless there is no byte at all. */
  constructor(pieces: readonly Uint8Array[], file?: SpoolFile) {
    this.#pieces = pieces;
    this.#file = file;
  }

  /** All pieces. Each may be overwritten by the next. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    if (this.#file !== undefined) yield* this.#file.pieces();
    yield* this.#pieces;
  }

  /** All of it, when it is known to be short. */
  async join(): Promise<Buffer> {
    const copies: Buffer[] = [];
    for await (const piece of this) copies.push(Buffer.from(piece));
    return Buffer.concat(copies);
  }

  with(more: Uint8Array): BytePieces {
    return new BytePieces([...this.#pieces, more], this.#file);
  }

  /** Without its last byte, if it is that one. */
  withoutLast(byte: number): BytePieces {
    const last = this.#pieces.at(-1);
    if (last?.at(-1) !== byte) return this;
    return new BytePieces([...this.#pieces.slice(0, -1), last.subarray(0, -1)], this.#file);
  }
}
