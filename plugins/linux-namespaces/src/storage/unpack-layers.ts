import { statfs } from "node:fs/promises";
import { constants } from "node:os";
import { dirname } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { SandboxError } from "@coppice/core";
import type { ImageSource } from "@coppice/core/backend";
import { type Confinement, runConfined } from "../launcher/confined-program.js";
import { findHostProgram } from "../launcher/host-program.js";
import type { HostRun, Launcher } from "../launcher/launcher.js";
import { PREPARED_REFERENCE, prepareLayout } from "./image-source.js";

/** Size of a tree. Holes of files take no bytes. */
export interface TreeSize {
  readonly bytes: number;
  readonly entries: number;
}

export const UNPACKER = "umoci";

const MEBIBYTE = 2 ** 20;
/** Inside: the layout as it came, the one that umoci reads, and the root that it fills. */
const SOURCE = "/source";
const LAYOUT = "/layout";
const ROOT = "/root";
/** CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SETFCAP. */
const CAPABILITIES = [0, 1, 3, 4, 31];
const MEMORY_MIB = 1_024;
const PROCESSES = 256;
const OPEN_FILES = 1_024;
/** Beside what an image of that size takes at most, a minute. */
const CPU_SECONDS = 60;
const SLOWEST_BYTES_PER_SECOND = 8 * MEBIBYTE;
const SLOWEST_ENTRIES_PER_SECOND = 1_000;
const WATCHED_EVERY_MS = 100;
/** Where the file system does not count its files, the tree itself is counted. */
const COUNTED_EVERY_MS = 2_000;
const MAX_REASON_LENGTH = 300;

/**
 * Unpacks the layers of an image into an empty directory, by umoci in namespaces of its own.
 * @param confinement `place` is a directory that is made here, for everything that it needs meanwhile.
 * @throws SandboxError image_invalid, image_too_large, failed_precondition without umoci, or the signal's reason.
 */
export async function unpackLayers(
  confinement: Confinement,
  { root, source }: { readonly root: string; readonly source: ImageSource },
  signal: AbortSignal,
): Promise<TreeSize> {
  const { launcher, place } = confinement;
  const path = await findHostProgram([UNPACKER]);
  if (path === undefined) {
    const text = `images cannot be unpacked: this host does not have the program ${UNPACKER} (apt-get install ${UNPACKER})`;
    throw new SandboxError("template_unusable", text);
  }
  const layout = `${place}.layout`;
  try {
    await prepareLayout(source, { directory: layout, seenAt: SOURCE }, signal);
    const watching = new AbortController();
    const unpacking = AbortSignal.any([signal, watching.signal]);
    const watch = watchTree(launcher, { root, source }, watching);
    try {
      const run = await runConfined(
        confinement,
        {
          path,
          args: ["--log", "error", "raw", "unpack", "--image", `${LAYOUT}:${PREPARED_REFERENCE}`, ROOT],
          directories: [
            { target: SOURCE, source: source.layout, isWritable: false },
            { target: LAYOUT, source: layout, isWritable: false },
            { target: ROOT, source: root, isWritable: true },
          ],
          capabilities: CAPABILITIES,
          resourceLimits: resourceLimits(source),
        },
        unpacking,
      );
      if (run.code !== 0) throw failureOf(run, source);
    } finally {
      watching.abort();
      await watch;
    }
    const size = await countTree(launcher, root);
    if (isTooLarge(size, source)) throw tooLarge(source);
    return size;
  } finally {
    await launcher.remove(layout, place);
  }
}

/** Size of a tree that no other process changes. */
export async function countTree(launcher: Launcher, path: string): Promise<TreeSize> {
  const [bytes = 0, entries = 0] = (await launcher.disk("count", path)).split(" ").map(Number);
  return { bytes, entries };
}

/** Stops the unpacking of a tree when it has become too large. */
async function watchTree(
  launcher: Launcher,
  { root, source }: { readonly root: string; readonly source: ImageSource },
  watching: AbortController,
): Promise<void> {
  const { signal } = watching;
  // Needs no permission to read the root, which layers may deny.
  const parent = dirname(root);
  try {
    let before = await statfs(parent);
    let used: TreeSize = { bytes: 0, entries: 0 };
    let countedAtMs = performance.now();
    while (!signal.aborted) {
      await sleep(WATCHED_EVERY_MS, undefined, { signal }).catch(() => undefined);
      const now = await statfs(parent);
      const possible = {
        bytes: used.bytes + (before.bfree - now.bfree) * now.bsize,
        entries: used.entries + before.ffree - now.ffree,
      };
      const isUncounted = now.files === 0 && performance.now() - countedAtMs > COUNTED_EVERY_MS;
      if (signal.aborted || !(isUncounted || isTooLarge(possible, source))) continue;
      before = now;
      countedAtMs = performance.now();
      used = await countTree(launcher, root);
      if (isTooLarge(used, source)) watching.abort(tooLarge(source));
    }
  } catch (error) {
    watching.abort(error);
  }
}

function resourceLimits({ maxBytes, maxEntries }: ImageSource): Readonly<Record<string, number>> {
  const slowest = maxBytes / SLOWEST_BYTES_PER_SECOND + maxEntries / SLOWEST_ENTRIES_PER_SECOND;
  return {
    "data": MEMORY_MIB * MEBIBYTE,
    "files": OPEN_FILES,
    "processes": PROCESSES,
    "file-size": maxBytes,
    "cpu-seconds": Math.ceil(CPU_SECONDS + slowest),
  };
}

function isTooLarge({ bytes, entries }: TreeSize, { maxBytes, maxEntries }: ImageSource): boolean {
  return bytes > maxBytes || entries > maxEntries;
}

function tooLarge({ maxBytes, maxEntries }: ImageSource): SandboxError {
  const text = `the image unpacks to more than ${maxBytes} bytes or ${maxEntries} files, or takes too long`;
  return new SandboxError("image_too_large", text);
}

function failureOf({ code, output }: HostRun, source: ImageSource): SandboxError {
  // The kernel kills it at its limit of processor time, or when the host has no memory left.
  if (code === -constants.signals.SIGKILL || output.includes("file too large")) return tooLarge(source);
  if (/no space left on device|disk quota exceeded/.test(output)) {
    return new SandboxError("host_resources_exhausted", "the host has no space for the image");
  }
  // Names in layers may contain any character.
  const line =
    output
      .replaceAll(/[^\P{C}\n]/gu, "")
      .trim()
      .split("\n")
      .at(-1) ?? "";
  const told = line.replace(/^.*?create rootfs: (unpack \w+: )?/, "").slice(0, MAX_REASON_LENGTH);
  const reason = told === "" ? `umoci ended with ${code}` : told;
  return new SandboxError("image_invalid", `the image cannot be unpacked: ${reason}`);
}
