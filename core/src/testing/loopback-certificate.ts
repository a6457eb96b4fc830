import "reflect-metadata";
import { webcrypto } from "node:crypto";
import { SubjectAlternativeNameExtension, X509CertificateGenerator } from "@peculiar/x509";
import { newKeys, privateKeyPem, SIGNING } from "../cli/certificate-keys.js";

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
