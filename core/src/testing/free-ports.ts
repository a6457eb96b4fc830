import { once } from "node:events";
import { createServer } from "node:net";
import "reflect-metadata";
import { webcrypto } from "node:crypto";
import { SubjectAlternativeNameExtension, X509CertificateGenerator } from "@peculiar/x509";
import { newKeys, privateKeyPem, SIGNING } from "../cli/tls.js";

/** Below those that the kernel gives to whoever asks for any: other tests do so between the look and the use. */
const FIRST = 10_240;
const COUNT = 22_000;

async function isFree(port: number): Promise<boolean> {
  const server = createServer();
  try {
    server.listen(port, "127.0.0.1");
    await once(server, "listening");
    await once(server.close(), "close");
    return true;
  } catch {
    return false;
  }
}

/** Ports of loopback that nothing listens on now, all of them different. */
export async function freePorts(count: number): Promise<readonly number[]> {
  const found = new Set<number>();
  while (found.size < count) {
    const port = FIRST + Math.floor(Math.random() * COUNT);
    if (!found.has(port) && (await isFree(port))) found.add(port);
  }
  return [...found];
}

/** One such port. */
export async function freePort(): Promise<number> {
  const [port = 0] = await freePorts(1);
  return port;
}

const HOUR_MS = 3_600_000;

/** A certificate for 127.0.0.1 that is its own authority, and its key, as PEM. */
export async function loopbackCertificate(): Promise<{ readonly cert: string; readonly key: string }> {
  const keys = await newKeys();
  const certificate = await X509CertificateGenerator.createSelfSigned(
    {
      name: "CN=loopback",
      keys,
      signingAlgorithm: SIGNING,
      notBefore: new Date(Date.now() - HOUR_MS),
      notAfter: new Date(Date.now() + HOUR_MS),
      extensions: [new SubjectAlternativeNameExtension([{ type: "ip", value: "127.0.0.1" }])],
    },
    webcrypto,
  );
  return { cert: certificate.toString("pem"), key: await privateKeyPem(keys.privateKey) };
}
