import { X509Certificate } from "node:crypto";
import { readdir, readFile, realpath, stat } from "node:fs/promises";
import { join } from "node:path";
import { rootCertificates } from "node:tls";

/** A certificate that this host trusts beside the public authorities. */
export interface HostAuthority {
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
