import { randomUUID } from "node:crypto";
import { readFile } from "node:fs/promises";
import { replaceFile } from "@coppice/core";

/**
 * What tells the server of a data directory from all others: made once, and kept in a file.
 * @throws Error of the file system.
 */
export async function readIdentity(path: string): Promise<string> {
  const known = await readFile(path, "utf8").catch((error: NodeJS.ErrnoException) => {
    if (error.code !== "ENOENT") throw error;
  });
  if (known !== undefined && known !== "") return known;
  const identity = randomUUID();
  await replaceFile(path, identity, { mode: 0o600, flush: true });
  return identity;
}
