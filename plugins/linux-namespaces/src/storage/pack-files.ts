import { openSync } from "node:fs";
import { constants, mkdir, utimes } from "node:fs/promises";
import { Socket } from "node:net";
import { join } from "node:path";
import { SandboxError, MEBIBYTE } from "@coppice/core";
import { type Confinement, runConfined } from "../launcher/confined-program.js";
import { findHostProgram } from "../launcher/host-programs.js";
import type { HostRun } from "../launcher/launcher.js";

const PACKER = "tar";
/** Inside: the files, and the directory with the pipe that the archive is written to. */
const FILES = "/files";
const OUTPUT = "/output";
const PIPE = "archive";
/** DAC_READ_SEARCH. */
const CAPABILITIES = [2];
const RESOURCE_LIMITS = { "data": 2_048 * MEBIBYTE, "files": 1_024, "processes": 64, "file-size": 0 };

/**
 * The same files give the same bytes: of the names of extended headers none has a process id, and times of access and
 * of changes of the inode are left out.
 */
const WORDS = [
  "--create",
  `--file=${OUTPUT}/${PIPE}`,
  `--directory=${FILES}`,
  "--sort=name",
  "--format=posix",
  "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime",
  "--numeric-owner",
  "--xattrs",
  "--xattrs-include=user.*",
  "--xattrs-include=security.capability",
  ".",
];

/**
 * Packs the files of layers as a sandbox would see them, by tar in namespaces of its own.
 * @param confinement `place` is a directory that is made here, for everything that it needs meanwhile.
 * @param lowers topmost first.
 * @throws SandboxError template_unusable without tar, or the signal's reason.
 */
export async function* packFiles(
  confinement: Confinement,
  lowers: readonly string[],
  signal: AbortSignal,
): AsyncIterable<Uint8Array> {
  signal.throwIfAborted();
  const { launcher, place } = confinement;
  const path = await findHostProgram([PACKER]);
  if (path === undefined)
    throw new SandboxError("template_unusable", `images cannot be packed: this host does not have ${PACKER}`);
  const layer = join(place, "layer");
  const output = join(place, "output");
  const left = new AbortController();
  let running: Promise<HostRun> | undefined;
  try {
    for (const each of [place, layer, join(layer, "upper"), join(layer, "work"), output])
      await mkdir(each, { mode: each === place ? 0o700 : 0o755 });
    // The root of the archive has the attributes of this directory.
    await utimes(join(layer, "upper"), 0, 0);
    await requireSuccess(launcher.run(["mkfifo", "--mode=600", join(output, PIPE)]));
    // Reads nothing before tar has opened it, and the end when tar has closed it.
    const fd = openSync(join(output, PIPE), constants.O_RDONLY | constants.O_NONBLOCK);
    const stream = new Socket({ fd, readable: true, writable: false });
    running = runConfined(
      { ...confinement, place: join(place, "root") },
      {
        path,
        args: WORDS,
        directories: [{ target: OUTPUT, source: output, isWritable: true }],
        overlays: [{ target: FILES, lowers, layer }],
        capabilities: CAPABILITIES,
        resourceLimits: RESOURCE_LIMITS,
      },
      AbortSignal.any([signal, left.signal]),
    );
    // One that has failed may never have opened the pipe.
    const done = requireSuccess(running).catch((error: unknown) => stream.destroy(error as Error));
    yield* stream as AsyncIterable<Uint8Array>;
    await done;
    await requireSuccess(running);
  } finally {
    left.abort();
    await running?.catch(() => undefined);
    await launcher.remove(place);
  }
}

async function requireSuccess(running: Promise<HostRun>): Promise<void> {
  const { code, output } = await running;
  if (code !== 0) throw new Error(`the files were not packed: ${output.trim()}`);
}
