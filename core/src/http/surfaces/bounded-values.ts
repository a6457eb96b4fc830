import type { IncomingMessage } from "node:http";
import type { DescMessage, DescField } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import type { Compression } from "@connectrpc/connect/protocol";
import { holdBytes, releaseBytes } from "../../bounds/held-bodies.js";
import { MOST_VALUES, TooManyValues, ValueCount } from "../../kernel/parse-json.js";
import { isTurnOver, laterTurn } from "../../kernel/turns.js";
import { BinaryReader, WireType } from "@bufbuild/protobuf/wire";

/** Of an envelope of Connect: flags, and the number of the bytes that follow. */
const HEAD_BYTES = 5;
const COMPRESSED = 0x01;
/** Bytes that are counted between two looks at the time. */
const PIECE_BYTES = 128 * 1024;
/** Of a binary message whose fields cannot be counted, for a compression does not know what it is. */
const MOST_UNCOUNTED_BYTES = 256 * 1024;
const JSON_START = /^\s*\{/;
/** Connect unpacks every envelope of a piece before the first is read: tens of thousands of a few bytes would wait. */
const ENVELOPES_AT_ONCE = 64;

interface BoundedBody {
  readonly message: IncomingMessage;
  /** What each message of the body is. */
  readonly input: DescMessage;
  /** Most bytes of a message, which whoever reads it requires. */
  readonly limitBytes: number;
}

/**
 * The body of an RPC. Its messages are counted while they are read, and may not have very many values or fields.
 * @throws ConnectError from the iteration.
 */
export function boundedBody(body: AsyncIterable<Uint8Array>, bounds: BoundedBody): AsyncIterable<Uint8Array> {
  const { "content-type": type = "" } = bounds.message.headers;
  return type.startsWith("application/connect+")
    ? boundedEnvelopes(body, bounds)
    : boundedMessage(body, bounds);
}

async function* boundedMessage(
  body: AsyncIterable<Uint8Array>,
  bounds: BoundedBody,
): AsyncGenerator<Uint8Array> {
  const { message } = bounds;
  const parts = messageParts(bounds, message.headers["content-encoding"] === undefined);
  // The end of a binary message may be its first byte that tells: the last piece waits for it.
  let last: Uint8Array | undefined;
  for await (const bytes of body) {
    hold(message, bytes.length);
    parts?.add(bytes);
    if (last !== undefined) yield last;
    last = bytes;
  }
  parts?.end();
  if (last !== undefined) yield last;
}

/** Of messages in envelopes each may have as many. Compressed ones are counted later. */
async function* boundedEnvelopes(
  body: AsyncIterable<Uint8Array>,
  bounds: BoundedBody,
): AsyncGenerator<Uint8Array> {
  const { message } = bounds;
  const head = Buffer.alloc(HEAD_BYTES);
  let headBytes = 0;
  let missing = 0;
  let length = 0;
  let parts: MessageParts | undefined;
  for await (const bytes of body) {
    let begin = 0;
    let begun = 0;
    for (let at = 0; at < bytes.length;) {
      if (begun === ENVELOPES_AT_ONCE) {
        yield bytes.subarray(begin, at);
        begin = at;
        begun = 0;
      }
      if (missing > 0) {
        const end = Math.min(bytes.length, at + missing);
        parts?.add(bytes.subarray(at, end));
        hold(message, end - at);
        missing -= end - at;
        at = end;
        if (missing > 0) continue;
        parts?.end();
        releaseBytes(message, length);
        continue;
      }
      const end = Math.min(bytes.length, at + HEAD_BYTES - headBytes);
      head.set(bytes.subarray(at, end), headBytes);
      headBytes += end - at;
      at = end;
      if (headBytes < HEAD_BYTES) continue;
      headBytes = 0;
      begun += 1;
      missing = length = head.readUInt32BE(1);
      const isCompressed = ((head[0] ?? 0) & COMPRESSED) !== 0;
      parts = missing > 0 ? messageParts(bounds, !isCompressed) : undefined;
    }
    yield bytes.subarray(begin);
  }
}

interface MessageParts {
  /** @throws ConnectError */
  add(bytes: Uint8Array): void;
  /** @throws ConnectError */
  end(): void;
}

/** Undefined for what is compressed: `bounded` counts that. */
function messageParts(
  { message, input, limitBytes }: BoundedBody,
  isPlain: boolean,
): MessageParts | undefined {
  if (!isPlain) return undefined;
  if (/^application\/(connect\+)?json\b/.test(message.headers["content-type"] ?? "")) {
    const values = new ValueCount(MOST_VALUES);
    return { add: (json) => refusing(() => values.add(json)), end: () => undefined };
  }
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  return {
    add(piece) {
      bytes += piece.length;
      if (bytes <= limitBytes) pieces.push(piece);
    },
    end() {
      if (bytes <= limitBytes) requireFewParts(joined(pieces, bytes), input);
    },
  };
}

function joined(pieces: readonly Uint8Array[], bytes: number): Uint8Array {
  const [first] = pieces;
  return first?.length === bytes ? first : Buffer.concat(pieces, bytes);
}

/** A compression whose messages are counted when they are decompressed, if they are JSON. */
export function bounded(compression: Compression): Compression {
  return {
    ...compression,
    async decompress(compressed, mostBytes) {
      const bytes = await compression.decompress(compressed, mostBytes);
      if (!JSON_START.test(Buffer.from(bytes.subarray(0, 64)).toString("latin1"))) {
        if (bytes.length <= MOST_UNCOUNTED_BYTES) return bytes;
        const text = `a compressed binary message has more than ${MOST_UNCOUNTED_BYTES} bytes`;
        throw new ConnectError(text, Code.ResourceExhausted);
      }
      const values = new ValueCount(MOST_VALUES);
      for (let at = 0; at < bytes.length; at += PIECE_BYTES) {
        // Compressions do not know whose message it is.
        if (isTurnOver()) await laterTurn(compression);
        refusing(() => values.add(bytes.subarray(at, at + PIECE_BYTES)));
      }
      return bytes;
    },
  };
}

/** @param input what a binary message is; undefined for JSON. @throws ConnectError */
export function requireFewParts(bytes: Uint8Array, input: DescMessage | undefined): void {
  refusing(() => {
    if (input === undefined) new ValueCount(MOST_VALUES).add(bytes);
    else requireFewFields(input, bytes);
  });
}

/** @throws ConnectError */
function hold(message: IncomingMessage, bytes: number): void {
  try {
    holdBytes(message, bytes);
  } catch (error) {
    throw new ConnectError((error as Error).message, Code.Unavailable, undefined, undefined, error);
  }
}

function refusing(count: () => void): void {
  try {
    count();
  } catch (error) {
    if (!(error instanceof TooManyValues)) throw error;
    const text = `the message has more than ${MOST_VALUES} values`;
    throw new ConnectError(text, Code.InvalidArgument, undefined, undefined, error);
  }
}

const LONG_BYTES = 64 * 1024;
const decoder = new TextDecoder();

/**
 * Decodes a message in JSON for protobuf-es, which looks at each character for keys that are there twice: that takes ten
 * times as long as parsing, and holds up the event loop. Of a long message it sees no characters, but parses it.
 * Delete this when it looks faster (2.17).
 */
export function messageText(bytes: Uint8Array): string {
  const text = decoder.decode(bytes);
  return bytes.length < LONG_BYTES ? text : (Object.freeze({ toString: () => text }) as unknown as string);
}

/**
 * Refuses a binary message that has very many fields, those of the messages in it included: reading them would hold up
 * the event loop. Other faults are left to who reads it.
 * @throws TooManyValues
 */
function requireFewFields(desc: DescMessage, bytes: Uint8Array): void {
  const reader = new BinaryReader(bytes);
  let fields = 0;
  const count = (within: DescMessage | undefined, end: number): void => {
    while (reader.pos < end) {
      const [number, wireType] = reader.tag();
      fields += 1;
      if (fields > MOST_VALUES) throw new TooManyValues(`it has more than ${MOST_VALUES} fields`);
      const inner = messageOf(within?.fields.find((field) => field.number === number));
      if (wireType === WireType.LengthDelimited && inner !== undefined) {
        const length = reader.uint32();
        count(inner, reader.pos + length);
      } else if (wireType !== WireType.StartGroup && wireType !== WireType.EndGroup) reader.skip(wireType);
    }
  };
  try {
    count(desc, bytes.length);
  } catch (error) {
    if (error instanceof TooManyValues) throw error;
  }
}

function messageOf(field: DescField | undefined): DescMessage | undefined {
  if (field?.fieldKind === "message" || field?.fieldKind === "list") return field.message;
  return undefined;
}
