import { asciiJson, asciiPieces } from "../json/ascii-json.js";
import type { ExecutionEvent } from "../kernel/execution-event.js";

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
export const KEEPALIVE_LINE = Buffer.from('{"type": "keepalive"}\n');
/** Always the last line. */
export const END_LINE = Buffer.from('{"type": "end_of_execution"}\n');

/** Longer texts are not copied to save pieces. */
export const MAX_COPY_BYTES = 4096;

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
