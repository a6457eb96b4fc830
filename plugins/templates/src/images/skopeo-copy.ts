import { realpath, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { MEBIBYTE, SandboxError } from "@coppice/core";
import { BuildFailure } from "../model/build-record.js";
import { ARCHITECTURE, type HostPrograms, SYSTEM } from "./host-programs.js";
import type { RegistryGate } from "./registry-gate.js";
import { LAYOUT_NAME } from "./write-layout.js";

/**
 * A failed access to a file of this host, whose message has a path, which no client may see.
 * @returns the error to throw in its place; undefined for an error of another kind.
 */
export function hostFailure(error: unknown): Error | undefined {
  if (!(error instanceof Error)) return undefined;
  const { code, path } = error as NodeJS.ErrnoException;
  if (code === "ENOSPC" || code === "EDQUOT")
    return new SandboxError("store_unavailable", "the server has no room on its disk", { cause: error });
  return path === undefined ? undefined : error;
}

type GateCopy = {
  readonly programs: HostPrograms;
  readonly skopeo: string;
  /** Has the layout `image`, or gets it. */
  readonly directory: string;
  /** Of an image that it may copy. */
  readonly maxBytes: number;
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

/** It passes layers on as they are, so that a hostile one costs no more than another. */
const MEMORY_BYTES = 512 * MEBIBYTE;
const OPEN_FILES = 1_024;
const PROCESSORS = "2";
/** Beside what an image of that size takes at most. */
const CPU_SECONDS = 60;
const SLOWEST_BYTES_PER_SECOND = 8 * MEBIBYTE;

/**
 * Copies an image from a gate to an image layout, or the other way, by skopeo, which neither decompresses nor converts
 * its layers.
 * @returns a problem of the image. @throws BuildFailure without skopeo, the signal's reason.
 */
export async function copyByGate(gate: RegistryGate, copy: GateCopy): Promise<string | undefined> {
  const { programs, skopeo, directory, maxBytes, signal } = copy;
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
    words.push("--dest-oci-accept-uncompressed-layers", "--", `docker://${image}`, layout);
  } else {
    words.push("--dest-authfile", "auth.json", "--dest-tls-verify=false");
    words.push("--preserve-digests", "--", layout, `docker://${image}`);
  }
  const { code, output } = await programs.run(skopeo, {
    args: words,
    cwd: directory,
    environment: { HOME: directory, XDG_RUNTIME_DIR: directory, GOMAXPROCS: PROCESSORS },
    limits: {
      openFiles: OPEN_FILES,
      cpuSeconds: Math.ceil(CPU_SECONDS + maxBytes / SLOWEST_BYTES_PER_SECOND),
      fileSizeBytes: maxBytes + MEBIBYTE,
      coreSizeBytes: 0,
      dataBytes: MEMORY_BYTES,
    },
    signal,
  });
  if (code === 0) return undefined;
  if (code === 127) {
    const message = "this server cannot copy images: it has no skopeo, which its operator can install";
    throw new BuildFailure(message, "base");
  }
  if (code === undefined || /out of memory|cannot allocate memory/.test(output))
    return "its transfer takes more memory or processor time than it may";
  const [, said = "it could not be copied"] = /level=fatal msg="((?:[^"\\]|\\.)*)"/.exec(output) ?? [];
  const place = await realpath(directory);
  return said
    .replaceAll(/\\(.)/g, "$1")
    .replaceAll(`${place}/`, "")
    .replaceAll(place, ".")
    .replaceAll(`docker://${image}`, "the image")
    .replaceAll(image, "the image");
}
