import { asciiJson, parseJson } from "../json/ascii-json.js";
import { membersOfLong } from "../json/raw-json.js";
import type { KernelMessage } from "../transport/wire.js";

export type ExecutionEvent =
  | { readonly type: "number_of_executions"; readonly executionCount: number }
  | {
      readonly type: "stdout" | "stderr";
      /** A JSON string. */
      readonly text: Buffer;
      /** ISO 8601 with an offset. */
      readonly timestamp: string;
    }
  | {
      readonly type: "result";
      /** By MIME type, in the kernel's order. */
      readonly data: ReadonlyMap<string, Buffer>;
      /** True for the value of the cell's last expression, false for a display. */
      readonly isMainResult: boolean;
    }
  | {
      readonly type: "error";
      readonly name: string;
      readonly value: string;
      /** Its parts, as the kernel has them: an interface decides how they are put together. */
      readonly traceback: readonly string[];
    };

export type ErrorEvent = Extract<ExecutionEvent, { type: "error" }>;

/** The event of an iopub message, if it has one. @throws SyntaxError for a content that is no JSON object. */
export async function eventOf(
  message: KernelMessage,
  maxErrorBytes: number,
): Promise<ExecutionEvent | undefined> {
  switch (message.type) {
    case "execute_input": {
      const count = Number((await membersOfLong(message.content)).get("execution_count")?.toString("latin1"));
      return Number.isSafeInteger(count)
        ? { type: "number_of_executions", executionCount: count }
        : undefined;
    }
    case "stream": {
      const members = await membersOfLong(message.content);
      const text = members.get("text");
      const name = members.get("name")?.toString("latin1");
      if (text?.[0] !== QUOTE || (name !== '"stdout"' && name !== '"stderr"')) return undefined;
      return { type: name === '"stdout"' ? "stdout" : "stderr", text, timestamp: timestampOf(message) };
    }
    case "execute_result":
    case "display_data": {
      const data = (await membersOfLong(message.content)).get("data");
      if (data?.[0] !== OPEN_OBJECT) return undefined;
      const values = await membersOfLong(data);
      return { type: "result", data: values, isMainResult: message.type === "execute_result" };
    }
    case "error":
      return errorIn(message.content, maxErrorBytes);
    default:
      return undefined;
  }
}

/** The error in a message, with its value and traceback cut. @throws SyntaxError unless it is a JSON object. */
export async function errorIn(content: Buffer, maxErrorBytes: number): Promise<ErrorEvent> {
  const fields = await membersOfLong(content);
  const mostBytes = maxErrorBytes >> 1;
  return {
    type: "error",
    name: textParts(fields.get("ename"), mostBytes)?.join("") ?? "Error",
    value: textParts(fields.get("evalue"), mostBytes)?.join("") ?? "",
    traceback: textParts(fields.get("traceback"), mostBytes) ?? [],
  };
}

function textParts(json: Buffer | undefined, mostBytes: number): readonly string[] | undefined {
  if (json === undefined) return undefined;
  const value = beginningOf(json, mostBytes);
  if (typeof value !== "string" && !Array.isArray(value)) return undefined;
  const texts = [value].flat().filter((part) => typeof part === "string");
  const leftBytes = json.length - mostBytes;
  const note = leftBytes > 0 ? [`\n[truncated: ${leftBytes} more bytes]`] : [];
  return [...texts.map((text) => text.toWellFormed()), ...note];
}

/** An error from the server itself, in the words of E2B's server. */
export function syntheticError(name: string, value: string): ErrorEvent {
  return { type: "error", name, value, traceback: [] };
}

/** A text event from the server itself. */
export function noteEvent(text: string): ExecutionEvent {
  return {
    type: "stderr",
    text: Buffer.from(asciiJson(text)),
    timestamp: withOffset(new Date().toISOString()),
  };
}

const QUOTE = 0x22;
const OPEN_OBJECT = 0x7b;
const ISO_DATE = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$/;

function timestampOf({ date }: KernelMessage): string {
  return withOffset(date !== undefined && ISO_DATE.test(date) ? date : new Date().toISOString());
}

function withOffset(date: string): string {
  return date.replace(/Z$/, "+00:00");
}

/** The longest sequence that a cut may split: two escapes of one character. */
const MAX_ESCAPES = 12;

/** The value of a JSON string or list of strings, cut after its first bytes; undefined for longer other values. */
function beginningOf(json: Buffer, maxBytes: number): unknown {
  if (json.length <= maxBytes) return JSON.parse(json.toString("utf8"));
  let end = maxBytes;
  while (end > 0 && ((json[end] ?? 0) & 0xc0) === 0x80) end--;
  const text = json.toString("utf8", 0, end);
  for (let back = 0; back < MAX_ESCAPES; back++) {
    for (const close of ['"', '"]', "]"]) {
      // Undefined where the cut split an escape, or the space between two strings.
      const value = parseJson(text.slice(0, text.length - back) + close);
      if (value !== undefined) return value;
    }
  }
  return undefined;
}

/** Longer texts stay whole: copying them would hold up others. */
const MAX_TEXT_BYTES = 65_536;
const LINE_END = Buffer.from('"\\n"');
const BACKSLASH = 0x5c;

/** The event, or two: its text, and the end of the line behind it. */
export function lineEndApart(event: ExecutionEvent): readonly ExecutionEvent[] {
  if (event.type !== "stdout" && event.type !== "stderr") return [event];
  const { text } = event;
  if (text.length <= LINE_END.length || text.length > MAX_TEXT_BYTES || !endsLine(text)) return [event];
  const line = Buffer.concat([text.subarray(0, -3), LINE_END.subarray(-1)]);
  return [
    { ...event, text: line },
    { ...event, text: LINE_END },
  ];
}

/** True for the JSON of a string that ends with a newline, not with a backslash and an n. */
function endsLine(json: Buffer): boolean {
  if (!json.subarray(-3).equals(LINE_END.subarray(-3))) return false;
  let backslashes = 0;
  while (json[json.length - 3 - backslashes] === BACKSLASH) backslashes++;
  return backslashes % 2 === 1;
}

/** Passes whole pieces of output up to a limit, then notes once that the rest is missing. The end always passes. */
export async function* limitOutput(
  events: AsyncIterable<ExecutionEvent>,
  maxOutputBytes: number,
): AsyncGenerator<ExecutionEvent> {
  let leftBytes = maxOutputBytes;
  for await (const event of events) {
    if (event.type === "error" || event.type === "number_of_executions") {
      yield event;
      continue;
    }
    if (leftBytes < 0) continue;
    leftBytes -= outputBytes(event);
    yield leftBytes >= 0
      ? event
      : noteEvent(`\n[output truncated: this execution wrote more than ${maxOutputBytes} bytes]\n`);
  }
}

/** Bytes of output and results. An end has none. */
export function outputBytes(event: ExecutionEvent): number {
  if (event.type === "error" || event.type === "number_of_executions") return 0;
  if (event.type !== "result") return event.text.length;
  let size = 0;
  for (const value of event.data.values()) size += value.length;
  return size;
}
