import { realpath, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { BuildFailure } from "../model/build-failure.js";
import { ARCHITECTURE, SYSTEM } from "./architecture.js";
import type { HostPrograms } from "./host-programs.js";
import type { RegistryGate } from "./loopback-gate.js";
import { LAYOUT_NAME } from "./write-layout.js";

export type GateCopy = {
  readonly programs: HostPrograms;
  readonly skopeo: string;
  /** Has the layout `image`, or gets it. */
  readonly directory: string;
  readonly signal: AbortSignal;
} & (
  | {
      /** Version of the image behind the gate, `@sha256:…`. */
      readonly from: string;
    }
  | {
      /** `:latest` */
      readonly to: string;
    }
);

/**
 * Copies an image from a gate to an image layout, or the other way, by skopeo.
 * @returns a problem of the image. @throws BuildFailure without skopeo, the signal's reason.
 */
export async function copyByGate(gate: RegistryGate, copy: GateCopy): Promise<string | undefined> {
  const { programs, skopeo, directory, signal } = copy;
  const account = Buffer.from(`${gate.username}:${gate.password}`).toString("base64");
  const auths = { auths: { [gate.address]: { auth: account } } };
  await writeFile(join(directory, "auth.json"), JSON.stringify(auths), { mode: 0o600 });
  // Of the host's settings for containers, none is used.
  const words = ["--insecure-policy", "--registries-conf", "/dev/null", "--registries.d", "none"];
  words.push(
    "--tmpdir",
    directory,
    "--override-os",
    SYSTEM,
    "--override-arch",
    ARCHITECTURE,
    "copy",
    "--quiet",
  );
  const layout = `oci:${LAYOUT_NAME}:${LAYOUT_NAME}`;
  const image = `${gate.address}/image${"from" in copy ? copy.from : copy.to}`;
  if ("from" in copy) {
    words.push("--src-authfile", "auth.json", "--src-tls-verify=false");
    // Layers of other compressions are converted: a backend need not know them.
    words.push("--dest-compress-format", "gzip", "--", `docker://${image}`, layout);
  } else {
    words.push("--dest-authfile", "auth.json", "--dest-tls-verify=false");
    words.push("--preserve-digests", "--", layout, `docker://${image}`);
  }
  const { code, output } = await programs.run(skopeo, {
    args: words,
    cwd: directory,
    environment: { HOME: directory, XDG_RUNTIME_DIR: directory },
    signal,
  });
  if (code === 0) return undefined;
  if (code === 127) {
    const message = "this server cannot copy images: it has no skopeo, which its operator can install";
    throw new BuildFailure(message, "base");
  }
  const [, said = "it could not be copied"] = /level=fatal msg="((?:[^"\\]|\\.)*)"/.exec(output) ?? [];
  const place = await realpath(directory);
  return said
    .replaceAll(/\\(.)/g, "$1")
    .replaceAll(`${place}/`, "")
    .replaceAll(place, ".")
    .replaceAll(`docker://${image}`, "the image")
    .replaceAll(image, "the image");
}
