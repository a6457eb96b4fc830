/** Head of a program's answer. */
export interface AnswerHead {
  readonly status: number;
  /** Names and values in turns, as they came; without those about the connection, unless the protocol changes. */
  readonly headers: readonly string[];
  /** How the body ends: after that many bytes, after its last chunk, or with the connection. */
  readonly body: number | "chunked" | "until close";
  /** False when the connection ends after the answer. */
  readonly isKept: boolean;
  /** True when another protocol follows, as the body. */
  readonly isUpgrade: boolean;
}

/** About the connection to the next hop, so never passed on. */
export const HOP_BY_HOP: ReadonlySet<string> = new Set([
  "connection",
  "keep-alive",
  "proxy-authenticate",
  "proxy-authorization",
  "proxy-connection",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
]);

const STATUS_LINE = /^HTTP\/1\.([01]) ([1-9]\d\d)(?: [\t\x20-\x7e\x80-\xff]*)?$/;
const NAME = /^[!#$%&'*+\-.^_`|~\w]+$/;
const VALUE = /^[\t\x20-\x7e\x80-\xff]*$/;
/** Below 2 ** 53, where numbers are exact. */
const LENGTH = /^\d{1,15}$/;
const LINE_END = "\r\n";
/** Each costs microseconds here and at its client's. Node takes 2000 of a request. */
const MOST_HEADERS = 1000;

/**
 * Parses the head of an answer. Strict: readers that understand an answer differently could be made to take a part of
 * its body for another answer.
 * @param text lines with their ends, without the empty one.
 * @throws Error that tells what is wrong.
 */
export function parseAnswerHead(text: string, method: string): AnswerHead {
  let end = text.indexOf(LINE_END);
  const [, minor, digits] = STATUS_LINE.exec(text.slice(0, end)) ?? [];
  if (digits === undefined) throw new Error("no status line of HTTP/1.1");
  const status = Number(digits);
  const headers: string[] = [];
  let length: number | undefined;
  let isChunked = false;
  let options = "";
  let hasUpgrade = false;
  for (let start = end + 2; start < text.length; start = end + 2) {
    end = text.indexOf(LINE_END, start);
    const colon = text.indexOf(":", start);
    const name = text.slice(start, colon);
    const value = withoutPadding(text, colon + 1, end);
    if (colon < 0 || colon > end || !NAME.test(name) || !VALUE.test(value))
      throw new Error("a broken header");
    const key = name.toLowerCase();
    if (key === "content-length") {
      if (length !== undefined || !LENGTH.test(value)) throw new Error("no single length");
      length = Number(value);
      // HTTP forbids it there, and a reader that heeds it takes the next answer for a body.
      if (status === 204) continue;
    } else if (key === "transfer-encoding") {
      if (isChunked || value.toLowerCase() !== "chunked") throw new Error("an unknown transfer encoding");
      isChunked = true;
    } else if (key === "connection") options += `,${value.toLowerCase()}`;
    else if (key === "upgrade") hasUpgrade = true;
    if (status === 101 || !HOP_BY_HOP.has(key)) headers.push(name, value);
    if (headers.length > 2 * MOST_HEADERS) throw new Error(`more than ${MOST_HEADERS} headers`);
  }
  if (isChunked && length !== undefined) throw new Error("a length and chunks");
  const isModern = minor === "1";
  const isUpgrade = status === 101 && hasUpgrade && hasOption(options, "upgrade");
  const isBare = method === "HEAD" || status < 200 || status === 204 || status === 304;
  const body = isBare ? 0 : isChunked ? "chunked" : (length ?? "until close");
  return {
    status,
    headers,
    body: isUpgrade ? "until close" : body,
    // With chunks, which that version does not have, an answer of HTTP/1.0 may have ended earlier.
    isKept: isModern ? !hasOption(options, "close") : hasOption(options, "keep-alive") && !isChunked,
    isUpgrade,
  };
}

function hasOption(options: string, wanted: string): boolean {
  return options !== "" && options.split(",").some((option) => option.trim() === wanted);
}

/** Not by a regular expression, which could take quadratic time, nor by `trim`, which takes bytes beyond ASCII, too. */
function withoutPadding(text: string, start: number, end: number): string {
  let [first, last] = [start, end];
  while (first < last && isPadding(text.charCodeAt(first))) first += 1;
  while (last > first && isPadding(text.charCodeAt(last - 1))) last -= 1;
  return text.slice(first, last);
}

function isPadding(code: number): boolean {
  return code === 0x20 || code === 0x09;
}
