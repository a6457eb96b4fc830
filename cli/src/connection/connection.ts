import type { ConnectionOpts } from "e2b";
import { contextNamed, readContexts } from "./contexts.js";

const DEFAULT_URL = "http://127.0.0.1:3000";

/** Options of every verb that uses a server. */
export interface ServerOptions {
  readonly context?: string | undefined;
  readonly url?: string | undefined;
}

/**
 * The server that a verb uses, as the SDK takes it: a named context; else `--url`, E2B_API_URL or E2B_DOMAIN; else the
 * current context; else a server of this machine. The key is that of the context, or the environment's: a context's key
 * is sent to its own server alone.
 * @throws SandboxError invalid_argument for an unknown context.
 */
export function connectionOf({ context, url }: ServerOptions): ConnectionOpts {
  const { E2B_API_URL, E2B_SANDBOX_URL, E2B_DOMAIN, COPPICE_TOKEN, E2B_API_KEY } = process.env;
  const contexts = readContexts();
  const isNamedElsewhere = url !== undefined || E2B_API_URL !== undefined || E2B_DOMAIN !== undefined;
  const name = context ?? (isNamedElsewhere ? undefined : contexts.current);
  if (name !== undefined) {
    const found = contextNamed(contexts, name);
    return { apiUrl: found.url, sandboxUrl: found.url, ...credential(found.key) };
  }
  const key = COPPICE_TOKEN ?? E2B_API_KEY ?? "";
  // The SDK finds both URLs by the domain.
  if (url === undefined && E2B_API_URL === undefined && E2B_DOMAIN !== undefined) return credential(key);
  const apiUrl = url ?? E2B_API_URL ?? DEFAULT_URL;
  return { apiUrl, sandboxUrl: (url === undefined ? E2B_SANDBOX_URL : url) ?? apiUrl, ...credential(key) };
}

/** A JWT goes into the header of its own: the SDK sends each key as one of E2B's. */
function credential(key: string): ConnectionOpts {
  if (!/^[\w-]+\.[\w-]+\.[\w-]+$/.test(key)) return { apiKey: key };
  return { apiKey: key, apiHeaders: { "X-API-KEY": "", "Authorization": `Bearer ${key}` } };
}
