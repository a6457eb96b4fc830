import { lstat, mkdir, readlink } from "node:fs/promises";
import { join } from "node:path";
import { messageOf } from "@coppice/core";
import { capabilities, device, directory, instruction, overlayOf, processes } from "./launch-instructions.js";
import type { HostRun, Launcher } from "./launcher.js";
import type { UserNamespace } from "./user-namespace.js";

/** A program of the host that works on hostile data. */
interface ConfinedProgram {
  readonly path: string;
  readonly args: readonly string[];
  /** Host directories that it sees, by their path in its root. */
  readonly directories: readonly {
    readonly target: string;
    readonly source: string;
    readonly isWritable: boolean;
  }[];
  /** Overlays that it sees, as those of a sandbox. */
  readonly overlays?: readonly {
    readonly target: string;
    readonly lowers: readonly string[];
    /** Host directory with `upper` and `work`. */
    readonly layer: string;
  }[];
  /** Numbers of the capabilities that it has in its user namespace. */
  readonly capabilities: readonly number[];
  readonly resourceLimits: Readonly<Record<string, number>>;
}

export interface Confinement {
  readonly launcher: Launcher;
  readonly users: UserNamespace | undefined;
  /** First of its own ids on the host, where the server is root; undefined where there are none. */
  readonly firstId: number | undefined;
  /** Path of a directory for mounts, made here. */
  readonly place: string;
}

/** Beside /usr, directories at the top of a host that programs need, or links into it. */
export const SYSTEM_DIRECTORIES = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/** Host id of root, which stands for itself where files cannot be id-mapped. */
const HOST_ROOT = 0;

/**
 * Runs a program in namespaces of its own: it sees the system directories of the host and those given, has no network,
 * and powers only over files that it may see.
 * @throws Error when it cannot be started, or the signal's reason.
 */
export async function runConfined(
  confinement: Confinement,
  program: ConfinedProgram,
  signal: AbortSignal,
): Promise<HostRun> {
  const { firstId = HOST_ROOT, launcher, place, users } = confinement;
  await mkdir(place, { mode: 0o755 });
  const system = await systemDirectories();
  const run = (first: number | undefined): Promise<HostRun> =>
    launcher.confine(instructions({ place, users, system, first }, program), first, signal);
  if (users !== undefined) return run(undefined);
  try {
    return await run(firstId);
  } catch (error) {
    if (firstId === HOST_ROOT || !messageOf(error).startsWith("map-ids ")) throw error;
    return run(HOST_ROOT);
  }
}

function instructions(
  {
    first,
    place,
    system,
    users,
  }: Pick<Confinement, "place" | "users"> & {
    readonly first: number | undefined;
    readonly system: readonly string[];
  },
  program: ConfinedProgram,
): string[] {
  const mapped = first === undefined || first === HOST_ROOT ? "" : "m";
  const name = program.path.slice(program.path.lastIndexOf("/") + 1);
  return [
    ...instruction("program", program.path),
    ...(first === undefined ? [] : ["owner"]),
    ...instruction("tmpfs", place, "sd", "mode=755,size=64k,nr_inodes=64"),
    ...instruction("root", place),
    ...system,
    ...directory("/dev"),
    // Without nodev, unlike its surroundings.
    ...instruction("tmpfs", "/dev", "sx", "mode=755,size=4k,nr_inodes=4"),
    ...device("/dev/null", [1, 3], users),
    ...instruction("null", "/dev/null"),
    ...directory("/proc"),
    ...processes(),
    ...program.directories.flatMap(({ target, source, isWritable }) => [
      ...directory(target),
      ...instruction("bind", target, source, `sdx${isWritable ? "" : "r"}${mapped}`),
    ]),
    ...(program.overlays ?? []).flatMap(({ target, lowers, layer }) => [
      ...directory(target),
      ...overlayOf(target, lowers, layer, users),
    ]),
    "enter",
    ...Object.entries({ ...program.resourceLimits, core: 0 }).flatMap(([limit, value]) => [
      "resource-limit",
      limit,
      String(value),
    ]),
    ...(first === undefined ? [] : ["users"]),
    "no-new-privileges",
    "system-calls",
    ...capabilities(program.capabilities),
    ...[name, ...program.args].flatMap((word) => instruction("argument", word)),
  ];
}

async function systemDirectories(): Promise<string[]> {
  const words: string[] = [];
  for (const name of ["usr", ...SYSTEM_DIRECTORIES]) {
    const path = join("/", name);
    const found = await lstat(path).catch(() => undefined);
    if (found?.isSymbolicLink()) words.push(...instruction("link", path, await readlink(path)));
    if (found?.isDirectory()) words.push(...directory(path), ...instruction("bind", path, path, "rsd"));
  }
  return words;
}
