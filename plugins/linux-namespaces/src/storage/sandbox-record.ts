import { readFile, rename, writeFile } from "node:fs/promises";
import { z } from "zod";
import type { SandboxPaths } from "../launcher/launch-instructions.js";
import type { Init } from "../launcher/launcher.js";

const names = z.array(z.string()).readonly();
const limit = z.number();

/** Facts by which a server takes over a sandbox of an earlier one. Written before anything is made. */
const sandboxFacts = z
  .object({
    id: z.string(),
    template: z.string(),
    /** Host paths of what its root consists of. */
    lowers: names,
    /** All of what its root is made from; absent in what was written before sandboxes could be stopped. */
    root: z
      .object({
        name: z.string(),
        lowers: names,
        binds: z.array(z.object({ target: z.string(), source: z.string() }).readonly()).readonly(),
        overlays: z.array(z.object({ target: z.string(), lowers: names }).readonly()).readonly(),
      })
      .readonly()
      .optional(),
    /** True while it has no processes, or is about to have none, and begins anew when it is wanted. */
    isStopped: z.boolean().optional(),
    /** Snapshots that its layers lie upon. */
    snapshots: names.optional(),
    user: z.string(),
    limits: z.object({ cpuCount: limit, memoryMiB: limit, diskMiB: limit, processes: limit }).readonly(),
    /** By controller. */
    groups: z
      .record(z.string(), z.object({ version: z.literal([1, 2]), path: z.string() }).readonly())
      .readonly(),
    /** Size in MiB of layers in memory; undefined where they are on the disk. */
    memoryLayersMiB: z.number().optional(),
    /** Number of the project that its files are counted for; undefined where the file system does not count. */
    project: z.number().optional(),
    /** Id of its root on the host, where it has ids of its own; undefined while it is stopped. */
    firstId: z.number().optional(),
    /** Number of its network; undefined without egress. */
    network: z.number().optional(),
    /** True when that network has, or once had, rules of its own. */
    isRestricted: z.boolean().optional(),
  })
  .readonly();

export type SandboxFacts = z.infer<typeof sandboxFacts>;

export async function writeFacts(paths: SandboxPaths, facts: SandboxFacts): Promise<void> {
  await writeFile(`${paths.record}.new`, JSON.stringify(facts), { mode: 0o600 });
  await rename(`${paths.record}.new`, paths.record);
}

/** Undefined when it was never written whole. */
export async function readFacts(paths: SandboxPaths): Promise<SandboxFacts | undefined> {
  try {
    return sandboxFacts.parse(JSON.parse(await readFile(paths.record, "utf8")));
  } catch {
    return undefined;
  }
}

/** Its first process, as the launcher wrote it down; undefined when it never got that far. */
export async function readInit(paths: SandboxPaths): Promise<Init | undefined> {
  return readProcess(paths.init);
}

/** A process that the launcher wrote down in a file; undefined when it did not. */
export async function readProcess(path: string): Promise<Init | undefined> {
  const text = await readFile(path, "utf8").catch(() => "");
  const [, pid, start] = /^(\d+) (\d+)\n$/.exec(text) ?? [];
  return pid === undefined || start === undefined ? undefined : { pid: Number(pid), start };
}

/** True while the very same process runs. A zombie does not. */
export async function isAlive({ pid, start }: Init): Promise<boolean> {
  const text = await readFile(`/proc/${pid}/stat`, "latin1").catch(() => "");
  // The program's name is in parentheses and may hold anything.
  const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
  return fields[19] === start && fields[0] !== "Z" && fields[0] !== "X";
}
