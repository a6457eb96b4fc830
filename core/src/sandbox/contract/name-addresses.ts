import type { LookupAddress } from "node:dns";
import { Resolver } from "node:dns/promises";
import { readFile } from "node:fs/promises";
import { isIP } from "node:net";

export interface NameAddressesOptions {
  /** Name servers, `127.0.0.1:5353`; those of the system when absent. */
  readonly servers?: readonly string[];
  /** True: a name that is not found is also looked for in the search domains of the system. */
  readonly isSearched?: boolean;
}

const HOSTS = "/etc/hosts";
const RESOLV_CONF = "/etc/resolv.conf";
const QUERY_MS = 2_000;
const TRIES = 2;
/** With all tries, servers and search domains. */
const LOOKUP_MS = 5_000;

/**
 * Finds the addresses of a name that a client chose, in the hosts file and the DNS. getaddrinfo(3) would hold one of the two
 * threads that Node has for it as long as the name's own server says nothing: a few such names would stop every look-up of
 * this process for minutes.
 * @returns none for an unknown name. @throws Error without an answer
 */
export async function nameAddresses(
  hostname: string,
  { servers, isSearched = false }: NameAddressesOptions = {},
): Promise<LookupAddress[]> {
  const family = isIP(hostname);
  if (family !== 0) return [{ address: hostname, family }];
  const name = hostname.toLowerCase().replace(/\.$/, "");
  const written = inHosts(await textOf(HOSTS), name);
  if (written.length > 0) return written;
  // Each reads the system's settings anew.
  const resolver = new Resolver({ timeout: QUERY_MS, tries: TRIES });
  if (servers !== undefined) resolver.setServers(servers);
  const overdue = setTimeout(() => resolver.cancel(), LOOKUP_MS);
  try {
    const domains = isSearched ? searchDomains(await textOf(RESOLV_CONF)) : [];
    for (const full of [name, ...domains.map((domain) => `${name}.${domain}`)]) {
      const found = await inDns(full, resolver);
      if (found.length > 0) return found;
    }
    return [];
  } finally {
    clearTimeout(overdue);
  }
}

async function inDns(name: string, resolver: Resolver): Promise<LookupAddress[]> {
  const asked = await Promise.allSettled([resolver.resolve4(name), resolver.resolve6(name)]);
  const found = asked.flatMap((answer, at) =>
    answer.status === "fulfilled"
      ? answer.value.map((address) => ({ address, family: at === 0 ? 4 : 6 }))
      : [],
  );
  const silent = asked.find((answer) => answer.status === "rejected" && !isNotFound(answer.reason));
  if (found.length === 0 && silent?.status === "rejected") throw silent.reason;
  return found;
}

function isNotFound(error: unknown): boolean {
  return error instanceof Error && "code" in error && ["ENOTFOUND", "ENODATA"].includes(String(error.code));
}

/** Looks at the lines with the name alone: a file that blocks advertisements has a hundred thousand. */
function inHosts(text: string, name: string): LookupAddress[] {
  const whole = new RegExp(`[ \\t]${name.replaceAll(/[^\w-]/g, "\\$&")}(?=[\\s#]|$)`, "gi");
  return [...text.matchAll(whole)].flatMap(({ index }) => {
    const before = text.slice(text.lastIndexOf("\n", index) + 1, index).trim();
    const [address = ""] = before.split(/\s/, 1);
    const family = isIP(address);
    return family === 0 || before.includes("#") ? [] : [{ address, family }];
  });
}

function searchDomains(text: string): readonly string[] {
  const lines = [...text.matchAll(/^(?:search|domain)\s+(.+)$/gm)];
  return (lines.at(-1)?.[1] ?? "").trim().split(/\s+/).filter(Boolean);
}

/** Empty where the system has no such file. */
async function textOf(path: string): Promise<string> {
  return readFile(path, "utf8").catch(() => "");
}
