import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { hostAuthorities, messageOf, SandboxError } from "@coppice/core";
import type { Sandbox } from "@coppice/core/backend";
import type { TemplatesConfig } from "../templates-config.js";
import { runScript } from "../guest/guest-run.js";
import type { BuildTools } from "./build-tools.js";

/** Certificates of authorities in PEM. */
export interface Authorities {
  readonly pem: Buffer;
  /** SHA-256 in hexadecimal digits. */
  readonly digest: string;
  /** True for those that the operator has named for builds. */
  readonly isNamed: boolean;
}

/**
 * Adds certificates to those that the programs of an image trust. Prints `updated` where a program of the image did it,
 * `added` where only the file of all authorities has them, which such a program would replace.
 *
 * Each gets a file of its own: OpenSSL's folder has no files of several. Login shells have variables for programs
 * with a list of their own: Node.js and its npm, packages of Python.
 */
const TRUST = `
set -e
bundles="/etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem"
all=/etc/ssl/operator.pem
folder=/usr/local/share/ca-certificates
update=
if command -v update-ca-certificates > /dev/null; then
  update=update-ca-certificates
elif command -v update-ca-trust > /dev/null; then
  folder=/etc/pki/ca-trust/source/anchors
  [ -d "$folder" ] || folder=/etc/ca-certificates/trust-source/anchors
  update=update-ca-trust
elif command -v certctl > /dev/null; then
  folder=/usr/local/share/certs
  update="certctl rehash"
fi
mkdir -p "$folder" /etc/ssl /etc/profile.d
rm -f "$folder"/operator*.crt
cat > "$all"
number=0
while IFS= read -r line; do
  case $line in
  *"BEGIN CERTIFICATE"*)
    number=$((number + 1))
    : > "$folder/operator-$number.crt"
    ;;
  esac
  [ "$number" = 0 ] || printf '%s\\n' "$line" >> "$folder/operator-$number.crt"
done < "$all"
if [ -n "$update" ]; then
  $update > /dev/null
  echo updated
else
  done=
  for bundle in $bundles; do
    [ -s "$bundle" ] || continue
    [ "$1" = again ] || cat "$all" >> "$bundle"
    done=added
  done
  if [ -z "$done" ]; then
    echo "it has neither update-ca-certificates nor update-ca-trust" >&2
    exit 1
  fi
  echo "$done"
fi
{
  echo "export NODE_EXTRA_CA_CERTS=\\"\\\${NODE_EXTRA_CA_CERTS:-$all}\\""
  for bundle in $bundles; do
    [ -s "$bundle" ] || continue
    for name in SSL_CERT_FILE REQUESTS_CA_BUNDLE PIP_CERT; do
      echo "export $name=\\"\\\${$name:-$bundle}\\""
    done
    break
  done
} > /etc/profile.d/operator-authorities.sh
`;

/**
 * Runs update-ca-certificates where its folder has an authority that the programs of the image do not trust yet: the last
 * lines of a certificate are its signature. Prints the names of these.
 */
const TRUST_NEW = `
command -v update-ca-certificates > /dev/null || exit 0
shopt -s nullglob globstar
bundle=/etc/ssl/certs/ca-certificates.crt
new=()
for file in /usr/local/share/ca-certificates/**/*.crt; do
  line=$(grep -v -e ----- "$file" | tail -n 2 | head -n 1)
  [ -z "$line" ] || grep -qF -e "$line" "$bundle" 2> /dev/null || new+=("\${file##*/}")
done
[ "\${#new[@]}" = 0 ] || { update-ca-certificates > /dev/null && echo "\${new[*]}"; }
`;

/** Makes the programs of an image trust authorities that its steps have put where Debian's and Alpine's are added. */
export async function trustNewAuthorities(
  sandbox: Sandbox,
  { signal, print }: Pick<BuildTools, "signal" | "print">,
): Promise<void> {
  const { exit, stdout, stderr } = await runScript(sandbox, TRUST_NEW, { args: [], signal });
  if (exit.code !== 0) print("warn", `update-ca-certificates failed: ${stderr}`);
  else if (stdout !== "") print("info", `Trusting new authorities: ${stdout.trim()}`);
}

/**
 * The authorities that templates trust beside their own; undefined for none.
 * @param certificates a PEM file on the host, or a word. @throws SandboxError template_unusable when it cannot be read
 */
export async function readAuthorities(
  certificates: TemplatesConfig["builds"]["certificates"],
): Promise<Authorities | undefined> {
  if (certificates === "none") return undefined;
  const pem = certificates === "host" ? await ofHost() : await ofFile(certificates);
  if (pem.length === 0) return undefined;
  const digest = createHash("sha256").update(pem).digest("hex");
  return { pem, digest, isNamed: certificates !== "host" };
}

async function ofHost(): Promise<Buffer> {
  const found = await hostAuthorities();
  return Buffer.from(found.map(({ pem }) => pem).join(""));
}

async function ofFile(path: string): Promise<Buffer> {
  return readFile(path).catch((error: unknown) => {
    const text = `the certificates of builds.certificates cannot be read: ${messageOf(error)}`;
    throw new SandboxError("template_unusable", text, { cause: error });
  });
}

/** How far the programs of an image trust given authorities. */
export type Trust =
  | { readonly state: "updated" | "added" }
  | { readonly state: "failed"; readonly problem: string };

/** Makes the programs of an image trust authorities beside its own. @param before what an earlier call has returned */
export async function trustAuthorities(
  sandbox: Sandbox,
  { pem }: Authorities,
  { signal, before }: { readonly signal: AbortSignal; readonly before?: Trust | undefined },
): Promise<Trust> {
  if (before?.state === "updated") return before;
  async function* input(): AsyncGenerator<Uint8Array> {
    yield pem;
  }
  const args = before?.state === "added" ? ["again"] : ["first"];
  const { exit, stdout, stderr } = await runScript(sandbox, TRUST, {
    args,
    shell: "sh",
    input: input(),
    signal,
  });
  if (exit.code !== 0) return { state: "failed", problem: stderr };
  return { state: stdout.trim() === "updated" ? "updated" : "added" };
}
