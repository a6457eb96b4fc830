import { webcrypto } from "node:crypto";
import { PemConverter } from "@peculiar/x509";

// Algorithms that old browsers and SDKs can verify, too.
export const KEY = { name: "ECDSA", namedCurve: "P-256" };
export const SIGNING = { name: "ECDSA", hash: "SHA-256" };

export function newKeys(): Promise<webcrypto.CryptoKeyPair> {
  return webcrypto.subtle.generateKey(KEY, true, ["sign", "verify"]);
}

export async function privateKeyPem(key: webcrypto.CryptoKey): Promise<string> {
  return `${PemConverter.encode(await webcrypto.subtle.exportKey("pkcs8", key), "PRIVATE KEY")}\n`;
}
