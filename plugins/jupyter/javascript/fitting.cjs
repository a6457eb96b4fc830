"use strict";
// Keeps a cell's results and errors within the message size that the server accepts: a larger message would end the
// kernel and its state.

// Longest escape of a character: \uXXXX.
const WIDEST = 6;

/**
 * A bundle by MIME type as JSON text, without its largest parts if it is too large. @param leftOut called with the type
 * and size of each of them.
 */
function bundleToFit(json, mostBytes, leftOut) {
  if (Buffer.byteLength(json) <= mostBytes) return json;
  const parts = Object.entries(JSON.parse(json)).map(([type, value]) => {
    const part = `${JSON.stringify(type)}: ${JSON.stringify(value)}`;
    return { type, part, size: Buffer.byteLength(part) };
  });
  const kept = [];
  let left = mostBytes;
  for (const { type, part, size } of parts.toSorted((one, other) => one.size - other.size)) {
    left -= size + 2;
    if (left > 0) kept.push(part);
    else leftOut(type, size);
  }
  return `{${kept.join(", ")}}`;
}

/** The beginning of a text; a message holds several such texts. */
function textToFit(text, mostBytes) {
  const most = Math.floor(mostBytes / WIDEST / 4);
  return text.length <= most
    ? text
    : `${text.slice(0, most)}\n[truncated: ${text.length - most} more characters]`;
}

module.exports = { bundleToFit, textToFit };
