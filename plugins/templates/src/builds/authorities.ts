import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { messageOf, SandboxError } from "@coppice/core";
import type { Sandbox } from "@coppice/core/backend";
import { runScript } from "../guest/guest-run.js";

/** Certificates of authorities in PEM. */
export interface Authorities {
  readonly pem: Buffer;
  /** SHA-256 in hexadecimal digits. */
  readonly digest: string;
}

/** Where Debian and Alpine, and Fedora, take further authorities from; then the program that gives them to all others. */
const TRUST = `
if command -v update-ca-certificates > /dev/null; then
  mkdir -p /usr/local/share/ca-certificates
  cat > /usr/local/share/ca-certificates/operator.crt
  update-ca-certificates
elif command -v update-ca-trust > /dev/null; then
  cat > /etc/pki/ca-trust/source/anchors/operator.pem
  update-ca-trust
else
  echo "it has neither update-ca-certificates nor update-ca-trust" >&2
  exit 1
fi > /dev/null
`;

/** @param path a PEM file on the host. @throws SandboxError failed_precondition when it cannot be read */
export async function readAuthorities(path: string): Promise<Authorities> {
  const pem = await readFile(path).catch((error: unknown) => {
    const text = `the certificates of builds.certificates cannot be read: ${messageOf(error)}`;
    throw new SandboxError("template_unusable", text, { cause: error });
  });
  return { pem, digest: createHash("sha256").update(pem).digest("hex") };
}

/** Makes the programs of an image trust authorities beside its own. @returns why that failed */
export async function trustAuthorities(
  sandbox: Sandbox,
  { pem }: Authorities,
  signal: AbortSignal,
): Promise<string | undefined> {
  async function* input(): AsyncGenerator<Uint8Array> {
    yield pem;
  }
  const { exit, stderr } = await runScript(sandbox, TRUST, { args: [], input: input(), signal });
  return exit.code === 0 ? undefined : stderr;
}
