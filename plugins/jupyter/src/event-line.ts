import { asciiBytes, asciiJson } from "./ascii-json.js";
import type { ExecutionEvent } from "./execution-event.js";
import type { RawJson } from "./raw-json.js";

/** The MIME types that have a field of their own in a result, in the order of E2B's server. */
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

/** Sent while nothing happens, so that a client that went away is noticed. */
export const KEEPALIVE_LINE = Buffer.from('{"type": "keepalive"}\n');
/** Always the last line. */
export const END_LINE = Buffer.from('{"type": "end_of_execution"}\n');

/** An event as one line of NDJSON, printable ASCII and a newline, spaced as E2B's server spaces it. */
export function lineOf(event: ExecutionEvent): Buffer {
  switch (event.type) {
    case "number_of_executions":
      return Buffer.from(`{"type": "number_of_executions", "execution_count": ${event.executionCount}}\n`);
    case "stdout":
    case "stderr":
      return Buffer.concat([
        Buffer.from(`{"type": "${event.type}", "text": `),
        asciiBytes(event.text),
        Buffer.from(`, "timestamp": "${event.timestamp}"}\n`),
      ]);
    case "result":
      return resultLine(event.data, event.isMainResult);
    case "error":
      return Buffer.from(
        `{"type": "error", "name": ${asciiJson(event.name)}, "value": ${asciiJson(event.value)}, ` +
          `"traceback": ${asciiJson(event.traceback)}}\n`,
      );
  }
}

function resultLine(data: ReadonlyMap<string, RawJson>, isMainResult: boolean): Buffer {
  const parts: Buffer[] = [Buffer.from('{"type": "result"')];
  for (const [mime, field] of FIELDS) {
    const value = data.get(mime);
    if (value === undefined || value.bytes.equals(NULL)) continue;
    const bytes = asciiBytes(value);
    parts.push(Buffer.from(`, "${field}": `), field === "text" ? withoutQuotes(bytes) : bytes);
  }
  const extra = [...data].filter(([mime]) => !FIELDS.has(mime));
  parts.push(Buffer.from(', "extra": {'));
  for (const [index, [mime, value]] of extra.entries()) {
    parts.push(Buffer.from(`${index === 0 ? "" : ", "}${asciiJson(mime)}: `), asciiBytes(value));
  }
  parts.push(Buffer.from(`}, "is_main_result": ${isMainResult}}\n`));
  return Buffer.concat(parts);
}

const NULL = Buffer.from("null");
const QUOTES = [Buffer.from("'"), Buffer.from('\\"')];

/** A JSON string without the one pair of quotes of its own that a `repr` put around it. */
function withoutQuotes(json: Buffer): Buffer {
  if (json[0] !== 0x22) return json;
  const inner = json.subarray(1, -1);
  const quote = QUOTES.find(
    (candidate) =>
      inner.length >= 2 * candidate.length &&
      inner.subarray(0, candidate.length).equals(candidate) &&
      inner.subarray(-candidate.length).equals(candidate),
  );
  return quote === undefined
    ? json
    : Buffer.concat([json.subarray(0, 1), inner.subarray(quote.length, -quote.length), json.subarray(-1)]);
}
