import { statfs } from "node:fs/promises";
import { constants } from "node:os";
import { dirname } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { SandboxError, MEBIBYTE } from "@coppice/core";
import {
  type ImageSource,
  imageTooLarge,
  prepareLayout,
  unpackArguments,
  unpackCpuSeconds,
  unpackFailure,
} from "@coppice/core/backend";
import { type Confinement, runConfined } from "../launcher/confined-program.js";
import { findHostProgram } from "../launcher/host-programs.js";
import type { HostRun, Launcher } from "../launcher/launcher.js";

/** Size of a tree. Holes of files take no bytes. */
interface TreeSize {
  readonly bytes: number;
  readonly entries: number;
}

export const UNPACKER = "umoci";

/** Inside: the layout as it came, the one that umoci reads, and the root that it fills. */
const SOURCE = "/source";
const LAYOUT = "/layout";
const ROOT = "/root";
/** CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SETFCAP. */
const CAPABILITIES = [0, 1, 3, 4, 31];
const MEMORY_MIB = 1_024;
const PROCESSES = 256;
const OPEN_FILES = 1_024;
const WATCHED_EVERY_MS = 100;
/** Where the file system does not count its files, the tree itself is counted. */
const COUNTED_EVERY_MS = 2_000;

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
          args: unpackArguments(LAYOUT, ROOT),
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
    if (isTooLarge(size, source)) throw imageTooLarge(source);
    return size;
  } finally {
    await launcher.remove(layout, place);
  }
}

export async function countTree(launcher: Launcher, path: string): Promise<TreeSize> {
  const [bytes = 0, entries = 0] = (await launcher.disk("count", path)).split(" ").map(Number);
  return { bytes, entries };
}

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
      if (isTooLarge(used, source)) watching.abort(imageTooLarge(source));
    }
  } catch (error) {
    watching.abort(error);
  }
}

function resourceLimits(source: ImageSource): Readonly<Record<string, number>> {
  return {
    "data": MEMORY_MIB * MEBIBYTE,
    "files": OPEN_FILES,
    "processes": PROCESSES,
    "file-size": source.maxBytes,
    "cpu-seconds": unpackCpuSeconds(source),
  };
}

function isTooLarge({ bytes, entries }: TreeSize, { maxBytes, maxEntries }: ImageSource): boolean {
  return bytes > maxBytes || entries > maxEntries;
}

function failureOf({ code, output }: HostRun, source: ImageSource): SandboxError {
  // The kernel kills it at its limit of processor time, or when the host has no memory left.
  return unpackFailure({ code, output, isKilled: code === -constants.signals.SIGKILL }, source);
}
