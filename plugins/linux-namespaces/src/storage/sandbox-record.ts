import { readFile, rename, writeFile } from "node:fs/promises";
import type { FullLimits, SandboxId } from "@coppice/core/backend";
import type { GroupRecord } from "../limits/control-groups.js";
import type { SandboxPaths } from "../launcher/launch-instructions.js";
import type { Init } from "../launcher/launcher.js";
import type { PreparedTemplate } from "../launcher/prepared-template.js";
import type { SnapshotChain } from "./snapshot-store.js";

/** What a server has to know to take over a sandbox of an earlier one. Written before anything is made. */
export interface SandboxFacts {
  readonly id: SandboxId;
  readonly template: string;
  /** Host paths of what its root consists of. */
  readonly lowers: readonly string[];
  /** All of what its root is made from; absent in what was written before sandboxes could be stopped. */
  readonly root?: PreparedTemplate | undefined;
  /** Whether it has no processes, or is about to have none, and begins anew when it is wanted. */
  readonly isStopped?: boolean | undefined;
  /** Snapshots that its layers lie upon. */
  readonly snapshots?: SnapshotChain | undefined;
  readonly user: string;
  readonly limits: FullLimits;
  readonly groups: GroupRecord;
  /** Kept in memory, size in MiB, or undefined where it is on the disk. */
  readonly memoryLayersMiB?: number | undefined;
  /** Number of the project that its files are counted for; undefined where the file system does not count. */
  readonly project?: number | undefined;
  /** What root inside is on the host, where it has ids of its own; undefined while it is stopped. */
  readonly firstId?: number | undefined;
  /** Number of its network; undefined without egress. */
  readonly network?: number | undefined;
  /** Whether that network has, or once had, rules of its own. */
  readonly isRestricted?: boolean | undefined;
}

export async function writeFacts(paths: SandboxPaths, facts: SandboxFacts): Promise<void> {
  await writeFile(`${paths.record}.new`, JSON.stringify(facts), { mode: 0o600 });
  await rename(`${paths.record}.new`, paths.record);
}

/** Undefined when it was never written whole. */
export async function readFacts(paths: SandboxPaths): Promise<SandboxFacts | undefined> {
  try {
    return JSON.parse(await readFile(paths.record, "utf8")) as SandboxFacts;
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

/** Whether the very same process still runs. A dead one that nobody has waited for yet does not. */
export async function isAlive({ pid, start }: Init): Promise<boolean> {
  const text = await readFile(`/proc/${pid}/stat`, "latin1").catch(() => "");
  // The program's name is in parentheses and may hold anything.
  const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
  return fields[19] === start && fields[0] !== "Z" && fields[0] !== "X";
}
