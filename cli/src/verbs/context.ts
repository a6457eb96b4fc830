import { text } from "node:stream/consumers";
import { printLine, SandboxError } from "@coppice/core/client";
import { CONTEXT_NAME, contextNamed, readContexts, writeContexts } from "../connection/contexts.js";
import { printRows, type RowOptions } from "../connection/print.js";

/** Adds a context, or replaces it. The key comes from stdin or the environment: other users see arguments. */
export async function addContext(
  name: string,
  { server, keyStdin }: { readonly server: string; readonly keyStdin?: true | undefined },
): Promise<number> {
  if (!CONTEXT_NAME.test(name))
    throw new SandboxError("usage_invalid", "a name is letters, digits, '.', '_', '-'");
  if (!/^https?:\/\//.test(server) || !URL.canParse(server))
    throw new SandboxError("usage_invalid", "--server is a URL, as https://coppice.example.com");
  const { COPPICE_TOKEN, E2B_API_KEY } = process.env;
  const key = keyStdin ? (await text(process.stdin)).trim() : (COPPICE_TOKEN ?? E2B_API_KEY);
  if (key === undefined || !/^[\x21-\x7e]+$/.test(key))
    throw new SandboxError(
      "usage_invalid",
      "there is no key: set E2B_API_KEY, or pipe it in with --key-stdin",
    );
  const { current = name, contexts } = readContexts();
  await writeContexts({ current, contexts: { ...contexts, [name]: { url: server, key } } });
  return 0;
}

export async function useContext(name: string): Promise<number> {
  const known = readContexts();
  contextNamed(known, name);
  await writeContexts({ ...known, current: name });
  return 0;
}

/** Lists contexts without their keys. */
export function listContexts(options: RowOptions): number {
  const { contexts, current } = readContexts();
  const rows = Object.entries(contexts).map(([name, { url }]) => ({
    name,
    server: url,
    current: name === current ? "*" : "",
  }));
  printRows(["name", "server", "current"], rows, options);
  return 0;
}

export async function removeContext(name: string): Promise<number> {
  const { current, contexts } = readContexts();
  contextNamed({ contexts }, name);
  const { [name]: _, ...others } = contexts;
  await writeContexts({ ...(current !== name && { current }), contexts: others });
  if (current === name) printLine("no context is in use now", process.stderr);
  return 0;
}
