import { isIP } from "node:net";
import { join, resolve } from "node:path";
import "reflect-metadata";
import { randomBytes, webcrypto } from "node:crypto";
import { mkdir, readFile } from "node:fs/promises";
import {
  AuthorityKeyIdentifierExtension,
  BasicConstraintsExtension,
  ExtendedKeyUsage,
  ExtendedKeyUsageExtension,
  KeyUsageFlags,
  KeyUsagesExtension,
  PemConverter,
  SubjectAlternativeNameExtension,
  SubjectKeyIdentifierExtension,
  X509Certificate,
  X509CertificateGenerator,
} from "@peculiar/x509";
import { ignoring, BootError } from "../kernel/errors.js";
import { replaceFile } from "../kernel/files.js";

// Algorithms that old browsers and SDKs can verify, too.
const KEY = { name: "ECDSA", namedCurve: "P-256" };
export const SIGNING = { name: "ECDSA", hash: "SHA-256" };

export function newKeys(): Promise<webcrypto.CryptoKeyPair> {
  return webcrypto.subtle.generateKey(KEY, true, ["sign", "verify"]);
}

export async function privateKeyPem(key: webcrypto.CryptoKey): Promise<string> {
  return `${PemConverter.encode(await webcrypto.subtle.exportKey("pkcs8", key), "PRIVATE KEY")}\n`;
}

/** Certificates signed by an authority of this machine. */
export async function tls(domain: string, folder: string): Promise<number> {
  const directory = resolve(folder);
  const { isNewAuthority } = await initTls(domain, directory);
  const authority = join(directory, "ca.pem");
  process.stdout.write(`${isNewAuthority ? "Made" : "Used"} the certificate authority ${authority}\n`);
  if (isIP(domain) !== 0) {
    process.stdout.write(`Made a certificate for ${domain}; keep ca-key.pem away from servers\n`);
    return 0;
  }
  process.stdout.write(
    `Made a certificate for ${domain} and *.${domain}\n\n` +
      "In the configuration:\n" +
      `  listeners: { api: { port: 8443, tls: { cert: ${join(directory, "cert.pem")}, key: ${join(directory, "key.pem")} } } }\n` +
      `  domain: ${domain}\n` +
      "  plugins:\n" +
      `    sandbox-api: { domain: "${domain}:8443" }\n\n` +
      "For clients:\n" +
      `  export NODE_EXTRA_CA_CERTS=${authority}   # JavaScript\n` +
      `  export SSL_CERT_FILE=${authority}         # Python, which then trusts nothing else\n` +
      `  export E2B_DOMAIN=${domain}:8443\n\n` +
      "For development only: with ca-key.pem anyone can impersonate any site to clients that trust ca.pem.\n",
  );
  return 0;
}

const DAY_MS = 24 * 3600 * 1000;
const AUTHORITY_DAYS = 3650;
/** Apple's clients accept at most 825 days, also for an authority that their user added. */
const CERTIFICATE_DAYS = 820;

/** At least two labels: OpenSSL and Node match no wildcard directly below a single one. */
const DOMAIN = /^(?=.{1,200}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$/;

interface Authority {
  readonly certificate: X509Certificate;
  readonly privateKey: webcrypto.CryptoKey;
  readonly isNew: boolean;
}

/**
 * Writes `cert.pem` and `key.pem` for a domain and its wildcard, or for an IP address, signed by the authority in `ca.pem` and `ca-key.pem`,
 * which is created if missing. Only this user can read the keys.
 * @throws BootError for a domain that no wildcard can be made for, or an authority that cannot be used.
 */
export async function initTls(
  domain: string,
  directory: string,
): Promise<{ readonly isNewAuthority: boolean }> {
  const isAddress = isIP(domain) !== 0;
  if (!isAddress && !DOMAIN.test(domain)) {
    throw new BootError([
      { message: `'${domain}' cannot have a wildcard: use two lower-case names or more, like dev.localhost` },
    ]);
  }
  await mkdir(directory, { recursive: true, mode: 0o700 });
  const authority = (await readAuthority(directory)) ?? (await makeAuthority(directory));
  const { publicKey, privateKey } = await newKeys();
  const certificate = await X509CertificateGenerator.create({
    serialNumber: serialNumber(),
    subject: `CN=${domain}`,
    issuer: authority.certificate.subject,
    ...validFor(CERTIFICATE_DAYS),
    signingAlgorithm: SIGNING,
    publicKey,
    signingKey: authority.privateKey,
    extensions: [
      new BasicConstraintsExtension(false, undefined, true),
      new KeyUsagesExtension(KeyUsageFlags.digitalSignature, true),
      // A server of a fleet is a client of etcd, and so is etcd of itself.
      new ExtendedKeyUsageExtension([
        ExtendedKeyUsage.serverAuth,
        ...(isAddress ? [ExtendedKeyUsage.clientAuth] : []),
      ]),
      new SubjectAlternativeNameExtension(
        isAddress
          ? [{ type: "ip", value: domain }]
          : [
              { type: "dns", value: domain },
              { type: "dns", value: `*.${domain}` },
            ],
      ),
      await SubjectKeyIdentifierExtension.create(publicKey),
      await AuthorityKeyIdentifierExtension.create(authority.certificate.publicKey),
    ],
  });
  await replaceFile(join(directory, "key.pem"), await privateKeyPem(privateKey), { mode: 0o600 });
  await replaceFile(join(directory, "cert.pem"), `${certificate.toString("pem")}\n`, { mode: 0o644 });
  return { isNewAuthority: authority.isNew };
}

async function readAuthority(directory: string): Promise<Authority | undefined> {
  const [certificatePem, keyPem] = await Promise.all([
    readIfPresent(join(directory, "ca.pem")),
    readIfPresent(join(directory, "ca-key.pem")),
  ]);
  if (certificatePem === undefined && keyPem === undefined) return undefined;
  try {
    if (certificatePem === undefined || keyPem === undefined) throw new Error("one of the two is missing");
    const privateKey = await webcrypto.subtle.importKey(
      "pkcs8",
      PemConverter.decodeFirst(keyPem),
      KEY,
      false,
      ["sign"],
    );
    return { certificate: new X509Certificate(certificatePem), privateKey, isNew: false };
  } catch (cause) {
    const message = `ca.pem and ca-key.pem in ${directory} cannot be used: restore or remove both`;
    throw new BootError([{ message }], { cause });
  }
}

async function makeAuthority(directory: string): Promise<Authority> {
  const keys = await newKeys();
  const certificate = await X509CertificateGenerator.createSelfSigned({
    serialNumber: serialNumber(),
    name: `CN=Coppice development CA ${randomBytes(4).toString("hex")}`,
    ...validFor(AUTHORITY_DAYS),
    signingAlgorithm: SIGNING,
    keys,
    extensions: [
      new BasicConstraintsExtension(true, 0, true),
      new KeyUsagesExtension(KeyUsageFlags.keyCertSign | KeyUsageFlags.cRLSign, true),
      await SubjectKeyIdentifierExtension.create(keys.publicKey),
    ],
  });
  await replaceFile(join(directory, "ca-key.pem"), await privateKeyPem(keys.privateKey), { mode: 0o600 });
  await replaceFile(join(directory, "ca.pem"), `${certificate.toString("pem")}\n`, { mode: 0o644 });
  return { certificate, privateKey: keys.privateKey, isNew: true };
}

/** Starts a day ago: clocks of containers and phones are often wrong. */
function validFor(days: number): { readonly notBefore: Date; readonly notAfter: Date } {
  const now = Date.now();
  return { notBefore: new Date(now - DAY_MS), notAfter: new Date(now + (days - 1) * DAY_MS) };
}

/** Positive, as RFC 5280 demands. */
function serialNumber(): string {
  const bytes = randomBytes(16);
  bytes[0] = ((bytes[0] ?? 0) & 0x7f) | 0x40;
  return bytes.toString("hex");
}

function readIfPresent(path: string): Promise<string | undefined> {
  return readFile(path, "utf8").catch(ignoring("ENOENT"));
}
