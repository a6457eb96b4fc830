import { randomBytes } from "node:crypto";
import { keptFile } from "@coppice/core";

const KEY_BYTES = 32;

/**
 * Reads the key of a server's download links from its file, or creates it, for this user alone.
 * @throws Error naming the file when it cannot be used.
 */
export async function persistentKey(path: string): Promise<Buffer> {
  const { contents } = await keptFile(path, () => randomBytes(KEY_BYTES));
  if (contents.length === KEY_BYTES) return contents;
  throw new Error(`the key file ${path} has ${contents.length} bytes instead of ${KEY_BYTES}: remove it`);
}
