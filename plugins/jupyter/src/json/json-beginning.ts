import { parseJson } from "./parse-json.js";

/** The longest sequence that a cut may split: two escapes of one character. */
const MAX_ESCAPES = 12;

/** The value of a JSON string or list of strings, cut after its first bytes; undefined for longer other values. */
export function beginningOf(json: Buffer, maxBytes: number): unknown {
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
