/** The longest of what a cut may go through: two escapes of one character. */
const LONGEST_ESCAPES = 12;

/**
 * What a JSON string, or a list of strings, says in its first bytes; all of it when it is not longer. Undefined for
 * what is neither and longer.
 * @param json one valid JSON value.
 */
export function beginningOf(json: Buffer, maxBytes: number): unknown {
  if (json.length <= maxBytes) return JSON.parse(json.toString("utf8"));
  let end = maxBytes;
  while (end > 0 && ((json[end] ?? 0) & 0xc0) === 0x80) end--;
  const text = json.toString("utf8", 0, end);
  for (let back = 0; back < LONGEST_ESCAPES; back++) {
    for (const close of ['"', '"]', "]"]) {
      try {
        return JSON.parse(text.slice(0, text.length - back) + close);
      } catch {
        // The cut went through an escape, or between two strings.
      }
    }
  }
  return undefined;
}
