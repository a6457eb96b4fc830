import type { ExecutionEvent } from "./execution-event.js";

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
