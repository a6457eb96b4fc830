import {
  BLOCK_BYTES,
  broken,
  decodeHeader,
  decodeRecords,
  entryHeader,
  type Extended,
  paddingOf,
  type TarHeader,
} from "./tar-blocks.js";

/** Most bytes of extended headers before an entry: they are kept in memory. */
const MAX_EXTENDED_BYTES = 256 * 1024;

interface ArchiveEntry {
  readonly header: TarHeader;
  /** Read it before the next entry. */
  readonly contents: AsyncIterable<Uint8Array>;
}

/**
 * The entries of an archive while it arrives. Unlike readers for archives that their user has made, it takes nothing that
 * another reader would take for something else, and the work for a header has a bound.
 * @throws SandboxError invalid_argument for an archive that is broken or ends within an entry; the errors of `source`.
 */
export async function* readArchive(source: AsyncIterable<Uint8Array>): AsyncGenerator<ArchiveEntry> {
  const input = new ByteReader(source);
  try {
    yield* entriesOf(input);
    for await (const _ of input.rest());
  } finally {
    await input.close();
  }
}

async function* entriesOf(input: ByteReader): AsyncGenerator<ArchiveEntry> {
  let extended: Extended = {};
  let extendedBytes = 0;
  for (;;) {
    const block = await input.take(BLOCK_BYTES);
    if (block === undefined) return;
    const raw = decodeHeader(block);
    // Whatever follows the end is not unpacked.
    if (raw === undefined) return;
    if (!"xgLK".includes(raw.letter)) {
      const header = entryHeader(raw, extended);
      yield { header, contents: input.stream(header.size) };
      await input.skip(paddingOf(header.size));
      extended = {};
      extendedBytes = 0;
      continue;
    }
    extendedBytes += BLOCK_BYTES + raw.size;
    // Also true for a size that is no number.
    if (!(raw.size >= 0 && extendedBytes <= MAX_EXTENDED_BYTES)) throw broken("a header is too long");
    const body = (await input.take(raw.size)) ?? Buffer.alloc(0);
    await input.skip(paddingOf(raw.size));
    if (raw.letter === "g") refuseForAll(decodeRecords(body));
    else
      extended = { ...extended, ...(raw.letter === "x" ? decodeRecords(body) : longName(raw.letter, body)) };
  }
}

/** One name, or one size, for all entries makes no archive. */
function refuseForAll({ name, linkname, size }: Extended): void {
  if (name ?? linkname ?? size) throw broken("a header names all entries alike");
}

/** GNU's form of a long name, or of a long target. */
function longName(letter: string, body: Buffer): Extended {
  const end = body.indexOf(0);
  const text = end === -1 ? body : body.subarray(0, end);
  return letter === "L" ? { name: text } : { linkname: text };
}

/** Reads pieces of a wanted size from chunks of any size. */
class ByteReader {
  readonly #chunks: AsyncIterator<Uint8Array>;
  #left: Uint8Array = Buffer.alloc(0);

  constructor(source: AsyncIterable<Uint8Array>) {
    this.#chunks = source[Symbol.asyncIterator]();
  }

  /** That many bytes; undefined at the end of the source. @throws SandboxError when it ends within them. */
  async take(length: number): Promise<Buffer | undefined> {
    const pieces: Uint8Array[] = [];
    for await (const piece of this.#pieces(length)) pieces.push(piece);
    const taken = Buffer.concat(pieces);
    if (taken.length === length) return taken;
    if (taken.length > 0) throw ended();
    return undefined;
  }

  /** That many bytes, as they arrive. @throws SandboxError when the source ends before. */
  async *stream(length: number): AsyncGenerator<Uint8Array> {
    let missing = length;
    for await (const piece of this.#pieces(length)) {
      missing -= piece.length;
      yield piece;
    }
    if (missing > 0) throw ended();
  }

  async skip(length: number): Promise<void> {
    for await (const _ of this.stream(length));
  }

  rest(): AsyncGenerator<Uint8Array> {
    return this.#pieces(Infinity);
  }

  async close(): Promise<void> {
    await this.#chunks.return?.();
  }

  async *#pieces(length: number): AsyncGenerator<Uint8Array> {
    for (let missing = length; missing > 0;) {
      if (this.#left.length === 0) {
        const next = await this.#chunks.next();
        if (next.done === true) return;
        this.#left = next.value;
      }
      const piece = this.#left.subarray(0, missing);
      this.#left = this.#left.subarray(piece.length);
      missing -= piece.length;
      yield piece;
    }
  }
}

function ended(): Error {
  return broken("it ends within an entry");
}
