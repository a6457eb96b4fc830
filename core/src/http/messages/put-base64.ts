import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

/** The addon in `native`. */
interface Addon {
  /** @returns where the text ends in the target, or -1 when it does not fit. */
  write(target: Uint8Array, at: number, source: Uint8Array): number;
  /** @returns how many bytes of the text it wrote, or -1 when that is no base64 or does not fit. */
  read(target: Uint8Array, text: Uint8Array): number;
}

/** What set-up built in this checkout. */
const BUILT = fileURLToPath(new URL("../../../../.toolchain/agent", import.meta.url));

/** Undefined where it was not built, or is for another C library. */
export const addon = loadAddon();

/** Writes bytes as base64 into a buffer. @returns where the text ends. @throws RangeError when it does not fit. */
export function putBase64(target: Buffer, at: number, bytes: Uint8Array): number {
  const end = (addon ?? plain).write(target, at, bytes);
  if (end < 0) throw new RangeError(`base64 of ${bytes.length} bytes does not fit`);
  return end;
}

const plain: Pick<Addon, "write"> = {
  write(target, at, source) {
    const text = Buffer.from(source.buffer, source.byteOffset, source.byteLength).toString("base64");
    if (at + text.length > target.length) return -1;
    return at + Buffer.from(target.buffer, target.byteOffset, target.byteLength).write(text, at, "latin1");
  },
};

function loadAddon(): Addon | undefined {
  try {
    const digest = readFileSync(join(BUILT, "current"), "utf8").trim();
    return createRequire(import.meta.url)(join(BUILT, digest, "base64.node")) as Addon;
  } catch {
    return undefined;
  }
}
