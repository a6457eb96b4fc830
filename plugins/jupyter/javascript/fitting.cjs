"use strict";
// Keeps what a cell shows and raises within the size of a message that the server takes: a larger one would end
// the kernel, with everything that is in it.

// How a character can be written at most: as \uXXXX.
const WIDEST = 6;

/**
 * A bundle by MIME type as JSON text, without the largest of its parts if there is too much of it.
 * @param leftOut called with the type of each of them and its size.
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

/** The beginning of a text, of which a message holds several. */
function textToFit(text, mostBytes) {
  const most = Math.floor(mostBytes / WIDEST / 4);
  return text.length <= most
    ? text
    : `${text.slice(0, most)}\n[truncated: ${text.length - most} more characters]`;
}

module.exports = { bundleToFit, textToFit };
