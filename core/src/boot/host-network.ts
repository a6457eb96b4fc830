import * as http from "node:http";
import { getCACertificates, setDefaultCACertificates, rootCertificates } from "node:tls";
import type { Cleanup } from "../kernel/cleanup.js";
import { messageOf } from "../kernel/errors.js";
import type { Logger } from "../observe/logger.js";
import type { NamedFinding } from "../observe/finding.js";
import type { ServerConfig } from "./server-schema.js";
import { X509Certificate } from "node:crypto";
import { readdir, readFile, realpath, stat } from "node:fs/promises";
import { join } from "node:path";
import { lookup } from "node:dns/promises";

type Outgoing = ServerConfig["outgoing"];

/** Hosts that no proxy can reach for this server. */
const OWN_HOSTS = "localhost,127.0.0.1,::1";

/**
 * Lets the connections of this process trust the authorities of the host, and `fetch` use the proxies of the environment,
 * until `cleanup` runs. Both hold for the whole process: Node has no smaller place for them.
 */
export async function useHostNetwork(
  { authorities, proxy }: Outgoing,
  { cleanup, log }: { readonly cleanup: Cleanup; readonly log: Logger },
): Promise<void> {
  const own = authorities === "host" ? await hostAuthorities() : [];
  if (own.length > 0) {
    const before = getCACertificates("default");
    setDefaultCACertificates([...before, ...own.map(({ pem }) => pem)]);
    cleanup.push("core", () => setDefaultCACertificates(before));
  }
  const { no_proxy: exceptions, ...proxies } = proxy === "environment" ? hostProxies() : {};
  if (Object.keys(proxies).length === 0) return;
  try {
    const no_proxy = exceptions === undefined ? OWN_HOSTS : `${exceptions},${OWN_HOSTS}`;
    // Nodes before 24.14 have none.
    const restore = http.setGlobalProxyFromEnv?.({ ...proxies, no_proxy });
    if (restore !== undefined) cleanup.push("core", restore);
  } catch (error) {
    log.warn({ reason: messageOf(error) }, "the proxy of the environment cannot be used");
  }
}

/** What of the host's network the server uses, for `coppice doctor`. */
export async function examineNetwork({ authorities, proxy }: Outgoing): Promise<readonly NamedFinding[]> {
  return [
    { name: "authorities", severity: "ok", message: await authoritiesText(authorities) },
    { name: "proxies", severity: "ok", message: proxiesText(proxy) },
  ];
}

async function authoritiesText(authorities: Outgoing["authorities"]): Promise<string> {
  if (authorities === "node") return "those of Node alone are trusted (outgoing.authorities)";
  const own = await hostAuthorities();
  if (own.length === 0) return "this host has none of its own beside the public ones";
  const names = own.map(({ subject, path }) => `'${subject}' of ${path}`);
  return `this host's own are trusted beside the public ones: ${names.join(", ")}`;
}

function proxiesText(proxy: Outgoing["proxy"]): string {
  if (proxy === "none") return "none is used (outgoing.proxy)";
  const { no_proxy: exceptions, http_proxy: plain, https_proxy: secure } = hostProxies();
  const named = [
    ...(plain === undefined ? [] : [`${withoutAccount(plain)} for HTTP`]),
    ...(secure === undefined ? [] : [`${withoutAccount(secure)} for HTTPS`]),
  ];
  if (named.length === 0) return "the environment names none";
  return `${named.join(", ")}${exceptions === undefined ? "" : `, not for ${exceptions}`}`;
}

/** Proxies of an environment, by the names that programs of Unix read. */
interface HostProxies {
  readonly http_proxy?: string;
  readonly https_proxy?: string;
  /** Hosts that are asked directly. */
  readonly no_proxy?: string;
}

const NAMES = ["http_proxy", "https_proxy", "no_proxy"] as const;

/** The proxies that an environment names, in lower or upper case; the first wins. */
export function hostProxies(environment: NodeJS.ProcessEnv = process.env): HostProxies {
  const found = NAMES.flatMap((name) => {
    const value = environment[name] || environment[name.toUpperCase()];
    return value ? [[name, value] as const] : [];
  });
  return Object.fromEntries(found);
}

/** A proxy's address without its account, for people and logs. */
function withoutAccount(address: string): string {
  const text = address.includes("://") ? address : `http://${address}`;
  if (!URL.canParse(text)) return "an address that cannot be read";
  const { protocol, host } = new URL(text);
  return `${protocol}//${host}`;
}

/** A certificate that this host trusts beside the public authorities. */
interface HostAuthority {
  /** In PEM. */
  readonly pem: string;
  /** Its name: `Acme Proxy CA`. */
  readonly subject: string;
  /** File that it was found in. */
  readonly path: string;
}

/** Certificates that an operator adds: of Debian and Alpine, Fedora, Arch Linux, FreeBSD. */
const LOCAL = [
  "/usr/local/share/ca-certificates",
  "/etc/pki/ca-trust/source/anchors",
  "/etc/ca-certificates/trust-source/anchors",
  "/usr/local/etc/ssl/certs",
];
/** What programs of the host read: a certificate may have been added to it alone. */
const BUNDLES = [
  "/etc/ssl/certs/ca-certificates.crt",
  "/etc/pki/tls/certs/ca-bundle.crt",
  "/etc/ssl/cert.pem",
];
/** Variables that name a file with further authorities, or with all. */
const VARIABLES = ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"];
/** Public authorities, as systems have them in packages. */
const PUBLIC = [
  "/usr/share/ca-certificates",
  "/usr/share/pki/ca-trust-source",
  "/usr/share/certs",
  "/usr/local/share/certs",
];

const CERTIFICATE = /-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----/g;
/** A file of all public authorities has a quarter of this. */
const MOST_BYTES = 2 * 1024 * 1024;

const certificatesIn = (text: string): readonly string[] => text.match(CERTIFICATE) ?? [];
/** The same for two ways to write one certificate. */
const contentOf = (pem: string): string => pem.replaceAll(/-----[^-]*-----|\s/g, "");

/**
 * Authorities that programs of this host trust and Node does not: those of the operator in the system's folders, its
 * bundle, and the files of `SSL_CERT_FILE` and `NODE_EXTRA_CA_CERTS`. Public ones are left out. In a fixed order.
 */
export async function hostAuthorities(
  environment: NodeJS.ProcessEnv = process.env,
): Promise<readonly HostAuthority[]> {
  const named = VARIABLES.flatMap((name) => environment[name] || []);
  const known = new Set(rootCertificates.map(contentOf));
  for (const { pem } of await readAll(PUBLIC)) known.add(contentOf(pem));
  const found = new Map<string, HostAuthority>();
  for (const { pem, path } of await readAll([...LOCAL, ...named, ...BUNDLES])) {
    const content = contentOf(pem);
    if (known.has(content) || found.has(content)) continue;
    const subject = subjectOf(pem);
    if (subject !== undefined) found.set(content, { pem: `${pem}\n`, subject, path });
  }
  return [...found.values()];
}

/** Certificates of files and of all files of folders. What cannot be read has none. */
async function readAll(paths: readonly string[]): Promise<readonly { pem: string; path: string }[]> {
  const files = (await Promise.all(paths.map(filesOf))).flat();
  const read = async (path: string): Promise<readonly { pem: string; path: string }[]> => {
    const { size } = await stat(path);
    if (size > MOST_BYTES) return [];
    return certificatesIn(await readFile(path, "latin1")).map((pem) => ({ pem, path }));
  };
  return (await Promise.all(files.map(async (path) => read(path).catch(() => [])))).flat();
}

async function filesOf(path: string): Promise<readonly string[]> {
  try {
    const target = await realpath(path);
    if (!(await stat(target)).isDirectory()) return [path];
    const entries = await readdir(target, { recursive: true, withFileTypes: true });
    return entries
      .filter((entry) => !entry.isDirectory())
      .map(({ parentPath, name }) => join(parentPath, name))
      .sort();
  } catch {
    return [];
  }
}

/** @returns undefined for what is no certificate */
function subjectOf(pem: string): string | undefined {
  try {
    const { subject, fingerprint256 } = new X509Certificate(pem);
    const names = new Map(
      (subject ?? "").split("\n").map((line) => [line.split("=", 1)[0], line.replace(/^[^=]*=/, "")]),
    );
    return names.get("CN") ?? names.get("O") ?? fingerprint256;
  } catch {
    return undefined;
  }
}

/** A server for names that does not answer takes longer. */
const LOOKUP_TIMEOUT_MS = 1_000;
const NAMES_REMEDY =
  "install libnss-myhostname (Debian: apt-get install libnss-myhostname) or run systemd-resolved";

const isLocalDomain = (domain: string): boolean => domain === "localhost" || domain.endsWith(".localhost");

/** True unless programs of this host find no address for a port of a sandbox: the C library of Debian alone knows none. */
async function namesAreFound(domain: string): Promise<boolean> {
  const { promise: late, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, LOOKUP_TIMEOUT_MS);
  try {
    const found = lookup(`8000-sandbox.${domain}`).catch(() => undefined);
    return (await Promise.race([found, late])) !== undefined;
  } finally {
    clearTimeout(timer);
  }
}

/** Advice for the person who starts a server for this machine alone; none where names are found. */
export async function namesAdvice(domain: string): Promise<readonly string[]> {
  if (!isLocalDomain(domain) || (await namesAreFound(domain))) return [];
  return [
    `Addresses of sandbox.getHost() open in browsers alone: other programs of this host find no name below ${domain}.`,
    `  For them ${NAMES_REMEDY}.`,
  ];
}

/** For `coppice doctor`. */
export async function examineNames(domain: string): Promise<readonly NamedFinding[]> {
  if (!isLocalDomain(domain)) return [];
  const name = "names";
  if (await namesAreFound(domain)) {
    return [{ name, severity: "ok", message: `programs of this host find names below ${domain}` }];
  }
  const message = `programs of this host, browsers apart, find no name below ${domain}: addresses of getHost() do not work in them`;
  return [{ name, severity: "warn", message, fix: NAMES_REMEDY }];
}
