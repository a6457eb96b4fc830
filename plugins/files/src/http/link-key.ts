import { randomBytes } from "node:crypto";
import { readFile } from "node:fs/promises";
import { replaceFile } from "@coppice/core/backend";

const KEY_BYTES = 32;

/**
 * Reads the key of a server's download links from its file, or creates it, for this user alone.
 * @throws Error naming the file when it cannot be used.
 */
export async function persistentKey(path: string): Promise<Buffer> {
  const known = await readFile(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== "ENOENT") throw error;
  });
  if (known === undefined) return makeKey(path);
  if (known.length === KEY_BYTES) return known;
  throw new Error(`the key file ${path} has ${known.length} bytes instead of ${KEY_BYTES}: remove it`);
}

async function makeKey(path: string): Promise<Buffer> {
  const key = randomBytes(KEY_BYTES);
  await replaceFile(path, key, { mode: 0o600, flush: true });
  return key;
}
