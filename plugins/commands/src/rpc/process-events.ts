import { setImmediate as nextTurn } from "node:timers/promises";
import type { MessageInitShape } from "@bufbuild/protobuf";
import {
  type Clock,
  factsOfEnd,
  fulfilledWithin,
  type messageStreamOf,
  putBase64,
  SandboxError,
} from "@coppice/core";
import { describeExit, type Output } from "@coppice/core/backend";
import type { OutputPiece, OutputSubscription, StartedCommand } from "../contract/commands.js";
import type { ProcessEventSchema } from "../generated/process/process_pb.js";
import { withKeepalives } from "../contract/keepalive.js";
import { REASONS } from "../reasons.js";

/** Data that becomes events together, at most; all of a larger piece. */
const BATCH_BYTES: number = 256 * 1024;

/** Smaller blocks are left to the collector. */
const POOLED_FROM_BYTES = 32 * 1024;
/** Holds a batch as JSON. */
const BLOCK_BYTES = 360 * 1024;
const SPARE_BLOCKS = 4;

const spares: Buffer[] = [];

/** Memory for events that are on their way to a client, used again: a flood would leave as much garbage as output. */
class EventBlock {
  readonly bytes: Buffer;
  readonly #block: Buffer | undefined;

  constructor(bytes: number) {
    const isPooled = bytes >= POOLED_FROM_BYTES && bytes <= BLOCK_BYTES;
    this.#block = isPooled ? (spares.pop() ?? Buffer.allocUnsafeSlow(BLOCK_BYTES)) : undefined;
    this.bytes = this.#block?.subarray(0, bytes) ?? Buffer.allocUnsafe(bytes);
  }

  /** Returns the memory. Nobody may read it any more. */
  release(): void {
    if (this.#block !== undefined && spares.length < SPARE_BLOCKS) spares.push(this.#block);
  }
}

// envd's read size for pipes and terminals; clients may have sized buffers after it.
const PIPE_CHUNK_BYTES = 32 * 1024;
const TERMINAL_CHUNK_BYTES = 16 * 1024;

/** Header of each message of a Connect stream: no flags, and the length. */
const ENVELOPE_BYTES = 5;

/** The data fields of ProcessEvent.DataEvent. */
const FIELDS = {
  stdout: { name: "stdout", number: 1, chunkBytes: PIPE_CHUNK_BYTES },
  stderr: { name: "stderr", number: 2, chunkBytes: PIPE_CHUNK_BYTES },
  terminal: { name: "pty", number: 3, chunkBytes: TERMINAL_CHUNK_BYTES },
} as const;

type Field = (typeof FIELDS)[Output["stream"]];
type Codec = ReturnType<typeof messageStreamOf>["codec"];

/**
 * Encodes output as data events of a process stream (StartResponse and ConnectResponse have the same layout): each in its
 * envelope, in envd's sizes. Equals the output of protobuf's own encoders.
 */
export function outputEnvelopes(pieces: readonly Output[], codec: Codec): EventBlock {
  const sizeOf = codec === "json" ? jsonBytes : protoBytes;
  const put = codec === "json" ? putJson : putProto;
  let bytes = 0;
  for (const { field, chunk } of eventsOf(pieces)) bytes += ENVELOPE_BYTES + sizeOf(field, chunk.length);
  const block = new EventBlock(bytes);
  let end = 0;
  for (const { field, chunk } of eventsOf(pieces)) {
    block.bytes[end] = 0;
    block.bytes.writeUInt32BE(sizeOf(field, chunk.length), end + 1);
    end = put(block.bytes, end + ENVELOPE_BYTES, field, chunk);
  }
  return block;
}

function* eventsOf(pieces: readonly Output[]): Generator<{ readonly field: Field; readonly chunk: Buffer }> {
  for (const { stream, data } of pieces) {
    const field = FIELDS[stream];
    for (let from = 0; from < data.length; from += field.chunkBytes) {
      const length = Math.min(field.chunkBytes, data.length - from);
      yield { field, chunk: Buffer.from(data.buffer, data.byteOffset + from, length) };
    }
  }
}

const JSON_END = '"}}}';

function jsonStart({ name }: Field): string {
  return `{"event":{"data":{"${name}":"`;
}

function jsonBytes(field: Field, dataBytes: number): number {
  return jsonStart(field).length + Math.ceil(dataBytes / 3) * 4 + JSON_END.length;
}

function putJson(bytes: Buffer, at: number, field: Field, chunk: Buffer): number {
  const from = at + bytes.write(jsonStart(field), at, "latin1");
  const end = putBase64(bytes, from, chunk);
  return end + bytes.write(JSON_END, end, "latin1");
}

/** `event` of the response, and `data` of the event; both length-delimited. */
const EVENT_TAG = (1 << 3) | 2;
const DATA_TAG = (2 << 3) | 2;

function protoBytes(_field: Field, dataBytes: number): number {
  return delimitedBytes(delimitedBytes(delimitedBytes(dataBytes)));
}

function putProto(bytes: Buffer, at: number, field: Field, chunk: Buffer): number {
  const data = delimitedBytes(chunk.length);
  let end = writeDelimiter(bytes, at, { tag: EVENT_TAG, length: delimitedBytes(data) });
  end = writeDelimiter(bytes, end, { tag: DATA_TAG, length: data });
  end = writeDelimiter(bytes, end, { tag: (field.number << 3) | 2, length: chunk.length });
  bytes.set(chunk, end);
  return end + chunk.length;
}

/** Size of a length-delimited field: its tag, its length and its bytes. */
function delimitedBytes(length: number): number {
  let bytes = 2;
  for (let rest = length >>> 7; rest > 0; rest >>>= 7) bytes += 1;
  return bytes + length;
}

function writeDelimiter(
  bytes: Buffer,
  at: number,
  { tag, length }: { readonly tag: number; readonly length: number },
): number {
  let end = bytes.writeUInt8(tag, at);
  let rest = length;
  for (; rest > 0x7f; rest >>>= 7) end = bytes.writeUInt8((rest & 0x7f) | 0x80, end);
  return bytes.writeUInt8(rest, end);
}

type MessageStream = ReturnType<typeof messageStreamOf>;

/** A piece of this size is one of many. */
const FLOOD_BYTES = 16 * 1024;
const REASON_MS = 1_000;

interface FollowOptions {
  /** The stream stops silently when the client has gone. */
  readonly signal: AbortSignal;
  /** The stream's deadline: when it aborts the stream ends with deadline_exceeded. */
  readonly deadline: AbortSignal | undefined;
  readonly keepaliveMs: number;
  readonly clock: Clock;
  readonly messages: MessageStream;
  /** Of the sandbox: aborts with the reason of its end. */
  readonly ended: AbortSignal;
  /** Offset of the first byte of output instead of the next one. */
  readonly from?: number | undefined;
}

type ProcessEvent = { event: MessageInitShape<typeof ProcessEventSchema> };

/** A command as events, with its output between them. @throws SandboxError deadline_exceeded, unavailable. */
export async function* processEvents(
  command: StartedCommand,
  options: FollowOptions,
): AsyncGenerator<ProcessEvent> {
  const { signal, deadline, ended, keepaliveMs, clock, messages, from } = options;
  // Before anything is awaited: a subscription made later would miss output.
  const until = deadline === undefined ? signal : AbortSignal.any([signal, deadline]);
  const output = command.subscribe(until, from);
  yield { event: { event: { case: "start", value: { pid: command.pid } } } };
  for await (const piece of withKeepalives(output, { intervalMs: keepaliveMs, clock })) {
    if (piece === undefined) yield { event: { event: { case: "keepalive", value: {} } } };
    else await sendOutput(messages, [piece, ...(await moreOf(output, piece.data.length))]);
  }
  if (deadline?.aborted) throw new SandboxError(REASONS.request_timeout, "context deadline exceeded");
  if (command.end === undefined) return;
  const { exit } = command.end;
  if (exit === undefined) throw await endOfSandbox(ended, clock);
  const { error, ...report } = describeExit(exit);
  const end = error === undefined ? report : { ...report, error };
  yield { event: { event: { case: "end", value: end } } };
}

/** The backend tells the reason a moment after the end of the process. */
async function endOfSandbox(ended: AbortSignal, clock: Clock): Promise<SandboxError> {
  const told = Promise.withResolvers<void>();
  ended.addEventListener("abort", () => told.resolve(), { once: true });
  if (ended.aborted) told.resolve();
  await fulfilledWithin(told.promise, { clock, timeoutMs: REASON_MS });
  const { words } = factsOfEnd(ended.reason);
  const text = "the sandbox ended while the command ran";
  return new SandboxError("sandbox_ended", words === undefined ? text : `${text}: ${words}`);
}

/** What can be sent together with a piece. A client of little output gets it at once. */
async function moreOf(output: OutputSubscription, pieceBytes: number): Promise<readonly OutputPiece[]> {
  // The rest of what this turn of the event loop reads comes before its end.
  if (pieceBytes >= FLOOD_BYTES) await nextTurn();
  return output.taken(BATCH_BYTES - pieceBytes);
}

async function sendOutput(messages: MessageStream, pieces: readonly OutputPiece[]): Promise<void> {
  const block = outputEnvelopes(pieces, messages.codec);
  for (const { release } of pieces) release?.();
  if (await messages.send(block.bytes)) block.release();
}
