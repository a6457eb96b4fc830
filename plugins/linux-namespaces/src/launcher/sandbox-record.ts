import { readFile, open } from "node:fs/promises";
import { join, dirname } from "node:path";
import { constants } from "node:fs";
import type { Socket } from "node:net";
import { SandboxError, replaceFile } from "@coppice/core/backend";
import { z } from "zod";
import { connectSocket } from "@coppice/agent";
import type { Init } from "./launcher.js";

const names = z.array(z.string()).readonly();
const limit = z.number();

/** Layers and mounts of a template, read-only and shared by its sandboxes. Lower layers are host paths, topmost first. */
const preparedTemplate = z
  .object({
    name: z.string(),
    lowers: names,
    /** Directories and files of the host that a sandbox sees read-only, over existing ones at `target`. */
    binds: z.array(z.object({ target: z.string(), source: z.string() }).readonly()).readonly(),
    /** Writable directories over directories of the host. */
    overlays: z.array(z.object({ target: z.string(), lowers: names }).readonly()).readonly(),
  })
  .readonly();

export type PreparedTemplate = z.infer<typeof preparedTemplate>;

/** Facts that let a later server adopt a sandbox. Written before any part of it is created. */
const sandboxFacts = z
  .object({
    id: z.string(),
    template: z.string(),
    /** Host paths of the layers of its root. */
    lowers: names,
    /** Template of its root; absent in records from before sandboxes could be stopped. */
    root: preparedTemplate.optional(),
    /** True while it has no processes, or is about to have none. */
    isStopped: z.boolean().optional(),
    snapshots: names.optional(),
    /** Images that its root is made of, topmost first; absent with a template. */
    images: names.optional(),
    user: z.string(),
    /** Directory of commands without one; absent = the home of each user. */
    workdir: z.string().optional(),
    limits: z.object({ cpuCount: limit, memoryMiB: limit, diskMiB: limit, processes: limit }).readonly(),
    groups: z
      .record(z.string(), z.object({ version: z.literal([1, 2]), path: z.string() }).readonly())
      .readonly(),
    /** Size in MiB of layers in memory; undefined for layers on disk. */
    memoryLayersMiB: z.number().optional(),
    project: z.number().optional(),
    /** Host id of its root, where it has separate ids; undefined while it is stopped. */
    firstId: z.number().optional(),
    network: z.number().optional(),
    /** True when that network has, or had, own rules. */
    isRestricted: z.boolean().optional(),
    /** Volumes that it may write to, and that no quota holds. */
    watchedVolumes: names.optional(),
  })
  .readonly();

export type SandboxFacts = z.infer<typeof sandboxFacts>;

/** Files of a sandbox on the host, below a directory that only the server's user can enter. */
export type SandboxPaths = Readonly<ReturnType<typeof sandboxPaths>>;

export function sandboxPaths(directory: string) {
  return {
    directory,
    record: join(directory, "sandbox.json"),
    init: join(directory, "init"),
    socket: join(directory, "agent.sock"),
    /** Mount point of its root, in its own mount namespace only. */
    mountPoint: join(directory, "root"),
    /** Writable layers, with its changes to the template. */
    layers: join(directory, "layers"),
  };
}

export async function writeFacts(paths: SandboxPaths, facts: SandboxFacts): Promise<void> {
  await replaceFile(paths.record, JSON.stringify(facts), { mode: 0o600 });
}

export async function readFacts(paths: SandboxPaths): Promise<SandboxFacts | undefined> {
  try {
    return sandboxFacts.parse(JSON.parse(await readFile(paths.record, "utf8")));
  } catch {
    return undefined;
  }
}

/** Its first process, as recorded by the launcher; undefined when none was started. */
export async function readInit(paths: SandboxPaths): Promise<Init | undefined> {
  return readProcess(paths.init);
}

/** A process that the launcher recorded in a file; undefined when it did not. @throws SandboxError without a descriptor to read it. */
export async function readProcess(path: string): Promise<Init | undefined> {
  const text = await readIfThere(path);
  const [, pid, start] = /^(\d+) (\d+)\n$/.exec(text) ?? [];
  return pid === undefined || start === undefined ? undefined : { pid: Number(pid), start };
}

/** True while this very process runs. False for a zombie. @throws SandboxError as `readProcess`. */
export async function isAlive({ pid, start }: Init): Promise<boolean> {
  const text = await readIfThere(`/proc/${pid}/stat`);
  // The program's name is in parentheses and may contain any character.
  const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
  return fields[19] === start && fields[0] !== "Z" && fields[0] !== "X";
}

/** Empty for a file that is not there. A server out of descriptors must not take its sandboxes for ended ones. */
async function readIfThere(path: string): Promise<string> {
  try {
    return await readFile(path, "latin1");
  } catch (error) {
    const { code = "" } = error as NodeJS.ErrnoException;
    if (["ENOENT", "ENOTDIR", "ESRCH"].includes(code)) return "";
    const message = `the process of the sandbox cannot be looked up: ${code}`;
    throw new SandboxError("host_resources_exhausted", message, { cause: error });
  }
}

// Length of sun_path without its NUL.
const LONGEST_SOCKET_PATH = 107;

/** Connects to a UNIX socket whose path may exceed sun_path. */
export async function connectAgent(path: string, signal: AbortSignal): Promise<Socket> {
  if (Buffer.byteLength(path) <= LONGEST_SOCKET_PATH) return connectSocket(path, signal);
  await using directory = await open(dirname(path), constants.O_RDONLY | constants.O_DIRECTORY);
  return await connectSocket(`/proc/self/fd/${directory.fd}/${path.slice(dirname(path).length + 1)}`, signal);
}
