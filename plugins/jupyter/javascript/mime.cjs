"use strict";
// Turns values into results.
const { inspect } = require("node:util");

const DISPLAY = Symbol.for("Jupyter.display");
/** Methods of displayable values, by the conventions of JavaScript kernels. */
const METHODS = {
  _toHtml: "text/html",
  _toSvg: "image/svg+xml",
  _toPng: "image/png",
  _toJpeg: "image/jpeg",
};
const PICTURES = [
  ["image/png", Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a])],
  ["image/jpeg", Buffer.from([0xff, 0xd8, 0xff])],
];

/** A value by MIME type, as JSON text, or a promise of it. @param isRaw true when it is such a bundle already. */
function bundleOf(value, isRaw = false) {
  if (isRaw) return JSON.stringify(value);
  if ((typeof value !== "object" || value === null) && typeof value !== "function") {
    return JSON.stringify({ "text/plain": text(value) });
  }
  for (const own of [DISPLAY, "_toMime"]) {
    if (typeof value[own] === "function") return after(value[own](), JSON.stringify);
  }
  const types = Object.keys(METHODS).filter((method) => typeof value[method] === "function");
  return after(all(types.map((method) => value[method]())), (shown) => {
    const parts = { "text/plain": JSON.stringify(text(value)) };
    for (const [index, method] of types.entries())
      parts[METHODS[method]] = JSON.stringify(String(shown[index]));
    const picture = value instanceof Uint8Array ? pictureType(value) : undefined;
    if (picture !== undefined) parts[picture] = JSON.stringify(Buffer.from(value).toString("base64"));
    const json = jsonOf(value);
    if (json !== undefined) parts["application/json"] = json;
    const members = Object.entries(parts).map(([type, part]) => `${JSON.stringify(type)}: ${part}`);
    return `{${members.join(", ")}}`;
  });
}

/** Like `then`, but synchronous for a ready value, to keep displays in order with printed output. */
function after(value, render) {
  return typeof value?.then === "function" ? Promise.resolve(value).then((it) => render(it)) : render(value);
}

function all(values) {
  return values.some((value) => typeof value?.then === "function") ? Promise.all(values) : values;
}

function text(value) {
  return inspect(value, { depth: 5, maxArrayLength: 200, maxStringLength: 1_000_000, breakLength: 80 });
}

function pictureType(bytes) {
  return PICTURES.find(([, magic]) => magic.equals(bytes.subarray(0, magic.length)))?.[0];
}

/** Lists and plain objects that JSON can represent. */
function jsonOf(value) {
  const prototype = Object.getPrototypeOf(value);
  if (!Array.isArray(value) && prototype !== Object.prototype && prototype !== null) return undefined;
  try {
    return JSON.stringify(value);
  } catch {
    return undefined;
  }
}

module.exports = { bundleOf };
