import { randomBytes } from "node:crypto";
import { constants } from "node:fs";
import { link, open, rm, writeFile } from "node:fs/promises";
import { messageOf, type Logger } from "@coppice/core";
import { newApiKey } from "./api-key.js";

const READABLE_BY_OTHERS = 0o077;
const MAX_KEY_BYTES = 1024;
const KEY = /^e2b_[0-9a-f]{40,}$/;

/**
 * The key in a file, which is created when missing. Concurrent callers, also in other processes, get the same key.
 * @throws Error that names the file when it belongs to another user, or holds no key.
 */
export async function keptDevelopmentKey(path: string, log: Logger): Promise<string> {
  try {
    return await readKey(path, log);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") {
      throw new Error(`the development key ${path} cannot be used: ${messageOf(error)}`, { cause: error });
    }
  }
  await makeKey(path);
  return readKey(path, log);
}

/** Creates the file atomically, without replacing another: a crash leaves at most an unused temporary file. */
async function makeKey(path: string): Promise<void> {
  const draft = `${path}.${randomBytes(6).toString("hex")}`;
  try {
    await writeFile(draft, `${newApiKey()}\n`, { flag: "wx", mode: 0o600, flush: true });
    await link(draft, path).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "EEXIST") throw error;
    });
  } finally {
    await rm(draft, { force: true });
  }
}

async function readKey(path: string, log: Logger): Promise<string> {
  await using file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  const stats = await file.stat();
  if (!stats.isFile() || stats.size > MAX_KEY_BYTES) throw new Error("it is no file of a key");
  if ((stats.mode & READABLE_BY_OTHERS) !== 0) {
    await file.chmod(0o600);
    log.warn({ file: path }, "others could use the development key; remove the file for a new one");
  }
  const key = (await file.readFile("utf8")).trim();
  if (!KEY.test(key)) throw new Error("it holds no key; remove it for a new one");
  return key;
}
