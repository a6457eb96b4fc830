import { keptFile, messageOf, type Logger } from "@coppice/core";
import { newApiKey } from "./api-key.js";

const KEY = /^e2b_[0-9a-f]{40,}$/;

/**
 * The key in a file, which is created when missing. Concurrent callers, also in other processes, get the same key.
 * @throws Error that names the file when it belongs to another user, or holds no key.
 */
export async function keptDevelopmentKey(path: string, log: Logger): Promise<string> {
  try {
    const { contents, wasOpen } = await keptFile(path, () => `${newApiKey()}\n`);
    if (wasOpen)
      log.warn({ file: path }, "others could use the development key; remove the file for a new one");
    const key = contents.toString().trim();
    if (KEY.test(key)) return key;
    throw new Error("it holds no key; remove it for a new one");
  } catch (error) {
    throw new Error(`the development key ${path} cannot be used: ${messageOf(error)}`, { cause: error });
  }
}
