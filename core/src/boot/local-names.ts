import { lookup } from "node:dns/promises";
import type { NamedFinding } from "../observe/finding.js";

/** A server for names that does not answer takes longer. */
const TIMEOUT_MS = 1_000;
const REMEDY =
  "install libnss-myhostname (Debian: apt-get install libnss-myhostname) or run systemd-resolved";

const isLocal = (domain: string): boolean => domain === "localhost" || domain.endsWith(".localhost");

/** True unless programs of this host find no address for a port of a sandbox: the C library of Debian alone knows none. */
async function areFound(domain: string): Promise<boolean> {
  const { promise: late, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, TIMEOUT_MS);
  try {
    const found = lookup(`8000-sandbox.${domain}`).catch(() => undefined);
    return (await Promise.race([found, late])) !== undefined;
  } finally {
    clearTimeout(timer);
  }
}

/** Advice for the person who starts a server for this machine alone; none where names are found. */
export async function namesAdvice(domain: string): Promise<readonly string[]> {
  if (!isLocal(domain) || (await areFound(domain))) return [];
  return [
    `Addresses of sandbox.getHost() open in browsers alone: other programs of this host find no name below ${domain}.`,
    `  For them ${REMEDY}.`,
  ];
}

/** For `coppice doctor`. */
export async function examineNames(domain: string): Promise<readonly NamedFinding[]> {
  if (!isLocal(domain)) return [];
  const name = "names";
  if (await areFound(domain)) {
    return [{ name, severity: "ok", message: `programs of this host find names below ${domain}` }];
  }
  const message = `programs of this host, browsers apart, find no name below ${domain}: addresses of getHost() do not work in them`;
  return [{ name, severity: "warn", message, fix: REMEDY }];
}
