import { once } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import { type Clock, holdBytes, isTurnOver, laterTurn, releaseBytes, unlessAborted } from "@coppice/core";
import { asciiJson, asciiPieces } from "../json/ascii-json.js";
import { type ExecutionEvent, outputBytes } from "../kernel/execution-event.js";

interface ExecutionStreamOptions {
  /** The sandbox of the execution. */
  readonly sender: Parameters<typeof laterTurn>[0];
  readonly clock: Clock;
  readonly keepaliveMs: number;
  readonly signal: AbortSignal;
  /** The request, which holds what its client has not taken. */
  readonly message: IncomingMessage;
}

/** Answers 200 at once, then a line per event at the client's pace. A client that leaves ends it without error. */
export async function streamExecution(
  response: ServerResponse,
  events: AsyncIterable<ExecutionEvent>,
  { sender, clock, keepaliveMs, message, signal }: ExecutionStreamOptions,
): Promise<void> {
  response.writeHead(200);
  response.flushHeaders();
  let lastWriteMs = clock.now();
  let isWithinLine = false;
  let cancelTimer = (): void => undefined;
  // One timer for all lines: most executions write far more often than it fires.
  const armKeepalive = (delayMs: number): void => {
    cancelTimer = clock.after(delayMs, () => {
      const silentMs = clock.now() - lastWriteMs;
      // A client that does not read has enough queued: keepalives would only pile up.
      if (silentMs >= keepaliveMs && !response.writableNeedDrain && !isWithinLine) {
        response.write(KEEPALIVE_LINE);
        lastWriteMs = clock.now();
        armKeepalive(keepaliveMs);
      } else armKeepalive(silentMs >= keepaliveMs ? keepaliveMs : keepaliveMs - silentMs);
    });
  };
  armKeepalive(keepaliveMs);
  try {
    for await (const event of events) {
      if (signal.aborted) return;
      lastWriteMs = clock.now();
      isWithinLine = true;
      let isLent = false;
      const bytes = outputBytes(event);
      holdBytes(message, bytes);
      for (const piece of lineOf(event)) {
        isLent ||= piece.length > MAX_COPY_BYTES;
        if (!response.write(piece)) await once(response, "drain", { signal });
        if (isTurnOver()) await laterTurn(sender);
      }
      // The memory of the event is reused with the next one.
      if (isLent && response.writableLength > 0) await flushed(response, signal);
      releaseBytes(message, bytes);
      isWithinLine = false;
    }
    if (!signal.aborted) response.end(END_LINE);
  } catch (error) {
    if (!signal.aborted) throw error;
  } finally {
    cancelTimer();
  }
}

/** Resolves when everything is written. Rejects when the signal is aborted. */
function flushed(response: ServerResponse, signal: AbortSignal): Promise<void> {
  // The callback of an empty write runs after all earlier ones, and nothing is sent.
  return unlessAborted(signal, () => new Promise((resolve) => response.write("", () => resolve())));
}

/** The MIME types with a field of their own in a result, in the order of E2B's server. */
const FIELDS: ReadonlyMap<string, string> = new Map([
  ["text/plain", "text"],
  ["text/html", "html"],
  ["text/markdown", "markdown"],
  ["image/svg+xml", "svg"],
  ["image/png", "png"],
  ["image/jpeg", "jpeg"],
  ["application/pdf", "pdf"],
  ["text/latex", "latex"],
  ["application/json", "json"],
  ["application/javascript", "javascript"],
  ["e2b/data", "data"],
  ["e2b/chart", "chart"],
]);

/** Sent during silence, so that a client that has left is noticed. */
const KEEPALIVE_LINE = Buffer.from('{"type": "keepalive"}\n');
/** Always the last line. */
const END_LINE = Buffer.from('{"type": "end_of_execution"}\n');

/** Longer texts are not copied to save pieces. */
const MAX_COPY_BYTES = 4096;

/**
 * An event as one line of NDJSON, printable ASCII and a newline, spaced as by E2B's server, in lazily made pieces: a
 * short line is one piece, and long content is neither copied nor made at once. Pieces of more than
 * `MAX_COPY_BYTES` may share the event's memory.
 */
export function* lineOf(event: ExecutionEvent): Generator<Buffer> {
  let short: Buffer[] = [];
  for (const piece of piecesOf(event)) {
    if (piece.length <= MAX_COPY_BYTES) short.push(piece);
    else {
      yield Buffer.concat(short);
      short = [];
      yield piece;
    }
  }
  yield Buffer.concat(short);
}

function* piecesOf(event: ExecutionEvent): Generator<Buffer> {
  switch (event.type) {
    case "number_of_executions":
      yield Buffer.from(`{"type": "number_of_executions", "execution_count": ${event.executionCount}}\n`);
      return;
    case "stdout":
    case "stderr":
      yield Buffer.from(`{"type": "${event.type}", "text": `);
      yield* asciiPieces(event.text);
      yield Buffer.from(`, "timestamp": "${event.timestamp}"}\n`);
      return;
    case "result":
      yield* resultPieces(event.data, event.isMainResult);
      return;
    case "error":
      yield Buffer.from(
        `{"type": "error", "name": ${asciiJson(event.name)}, "value": ${asciiJson(event.value)}, ` +
          `"traceback": ${asciiJson(event.traceback.join(""))}}\n`,
      );
  }
}

function* resultPieces(data: ReadonlyMap<string, Buffer>, isMainResult: boolean): Generator<Buffer> {
  yield Buffer.from('{"type": "result"');
  for (const [mime, field] of FIELDS) {
    const value = data.get(mime);
    if (value === undefined || value.equals(NULL)) continue;
    yield Buffer.from(`, "${field}": `);
    if (field === "text") yield* withoutQuotes(value);
    else yield* asciiPieces(value);
  }
  const extra = [...data].filter(([mime]) => !FIELDS.has(mime));
  yield Buffer.from(', "extra": {');
  for (const [index, [mime, value]] of extra.entries()) {
    yield Buffer.from(`${index === 0 ? "" : ", "}${asciiJson(mime)}: `);
    yield* asciiPieces(value);
  }
  yield Buffer.from(`}, "is_main_result": ${isMainResult}}\n`);
}

const NULL = Buffer.from("null");
const QUOTE = Buffer.from('"');
const QUOTES = [Buffer.from("'"), Buffer.from('\\"')];

/** A JSON string without the pair of quotes that `repr` added. */
function* withoutQuotes(json: Buffer): Generator<Buffer> {
  const inner = json.subarray(1, -1);
  const quote =
    json[0] === 0x22 &&
    QUOTES.find(
      (candidate) =>
        inner.length >= 2 * candidate.length &&
        inner.subarray(0, candidate.length).equals(candidate) &&
        inner.subarray(-candidate.length).equals(candidate),
    );
  if (!quote) {
    yield* asciiPieces(json);
    return;
  }
  yield QUOTE;
  yield* asciiPieces(inner.subarray(quote.length, -quote.length));
  yield QUOTE;
}
