import { readFileSync } from "node:fs";
import { chmod, mkdir, rename, writeFile } from "node:fs/promises";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import { messageOf, SandboxError } from "@coppice/core/client";
import { z } from "zod";

/** A server, and the key to it. */
const context = z.strictObject({ url: z.url(), key: z.string().min(1) });
const file = z.strictObject({ current: z.string().optional(), contexts: z.record(z.string(), context) });

export type Context = z.infer<typeof context>;
export type Contexts = z.infer<typeof file>;

export const CONTEXT_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;

/** Its keys are for this user alone: the file has mode 0600. */
function contextsFile(): string {
  const { XDG_CONFIG_HOME } = process.env;
  return join(XDG_CONFIG_HOME || join(homedir(), ".config"), "coppice", "contexts.json");
}

/** The contexts of this user; none without a file. @throws SandboxError invalid_argument for a file of another form. */
export function readContexts(): Contexts {
  const path = contextsFile();
  try {
    return file.parse(JSON.parse(readFileSync(path, "utf8")));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return { contexts: {} };
    // Not what the parser says: it would quote from the file, which has keys.
    const reason =
      error instanceof z.ZodError || error instanceof SyntaxError ? "no contexts" : messageOf(error);
    throw new SandboxError("usage_invalid", `${path} cannot be read: ${reason}`, { cause: error });
  }
}

export async function writeContexts(contexts: Contexts): Promise<void> {
  const path = contextsFile();
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  const unfinished = `${path}.${process.pid}`;
  await writeFile(unfinished, `${JSON.stringify(contexts, undefined, 2)}\n`, { mode: 0o600, flag: "wx" });
  await chmod(unfinished, 0o600);
  await rename(unfinished, path);
}

/** @throws SandboxError invalid_argument when there is none of that name. */
export function contextNamed({ contexts }: Contexts, name: string): Context {
  const found = Object.hasOwn(contexts, name) ? contexts[name] : undefined;
  if (found !== undefined) return found;
  throw new SandboxError("usage_invalid", `there is no context '${name}'; coppice context list shows them`);
}
