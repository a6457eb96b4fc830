import { execFile } from "node:child_process";
import { readFile, readdir, readlink } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { dirname } from "node:path";
import { SandboxError } from "@coppice/core";

const run = promisify(execFile);
const AT_ONCE = 32;
const MOST_OUTPUT = 64 * 1_048_576;

/** Environment variable of a sandbox's processes: the host path of its tree, unique on this host. */
export const ROOT_VARIABLE = "COPPICE_SANDBOX_ROOT";

/**
 * Finds the processes of a sandbox by the variable in their environment, or, if they cleared it, by a working directory
 * in the sandbox's tree, where the system tells it.
 */
export async function findProcesses(root: string): Promise<readonly number[]> {
  return process.platform === "linux" ? findInProc(root) : findByCommand(root);
}

/** What tells the sandbox of a process; empty where the process hides it. */
interface ProcessTraces {
  readonly pid: number;
  readonly root: string;
  readonly cwd: string;
}

/** Reads the traces of all processes of a Linux host but this one. */
async function readTraces(): Promise<readonly ProcessTraces[]> {
  const pids = (await readdir("/proc")).map(Number).filter((pid) => pid > 0 && pid !== process.pid);
  const traces: ProcessTraces[] = [];
  while (pids.length > 0) traces.push(...(await Promise.all(pids.splice(0, AT_ONCE).map(tracesOf))));
  return traces;
}

async function findInProc(root: string): Promise<readonly number[]> {
  const isWithin = (cwd: string): boolean => cwd === root || cwd.startsWith(`${root}/`);
  const traces = await readTraces();
  return traces.filter((each) => each.root === root || isWithin(each.cwd)).map(({ pid }) => pid);
}

async function tracesOf(pid: number): Promise<ProcessTraces> {
  const cwd = await readlink(`/proc/${pid}/cwd`).catch(() => "");
  const environment = await readFile(`/proc/${pid}/environ`).catch(() => Buffer.alloc(0));
  const name = `\0${ROOT_VARIABLE}=`;
  const text = `\0${environment.toString()}`;
  const start = text.indexOf(name);
  const end = text.indexOf("\0", start + 1);
  return { pid, cwd, root: start < 0 ? "" : text.slice(start + name.length, end < 0 ? undefined : end) };
}

async function findByCommand(root: string): Promise<readonly number[]> {
  const found = await Promise.all([findByEnvironment(root), findByDirectory(root)]);
  return [...new Set(found.flat())].filter((pid) => pid > 0 && pid !== process.pid);
}

// Best effort: `ps` shows the environment of the user's own processes, on one line with the command.
async function findByEnvironment(root: string): Promise<readonly number[]> {
  const lines = await ps(["pid", "command"], process.platform === "darwin" ? "-axwwE" : "-axwwe");
  return lines
    .filter((line) => `${line} `.includes(` ${ROOT_VARIABLE}=${root} `))
    .map((line) => Number.parseInt(line, 10));
}

export async function ps(columns: readonly string[], ...selection: readonly string[]): Promise<string[]> {
  // FreeBSD's takes all that follows an equals sign in a word for the header of that column.
  const words = [...selection, ...columns.flatMap((column) => ["-o", `${column}=`])];
  return (await run("ps", words, { maxBuffer: MOST_OUTPUT })).stdout.split("\n");
}

/** By FreeBSD's procstat(1). Other systems have none. */
async function findByDirectory(root: string): Promise<readonly number[]> {
  if (process.platform !== "freebsd") return [];
  const { stdout } = await run("procstat", ["-a", "pwdx"], { maxBuffer: MOST_OUTPUT });
  return stdout.split("\n").flatMap((line) => {
    const [, pid, directory = ""] = /^\s*(\d+): +(.*)$/.exec(line) ?? [];
    return directory === root || directory.startsWith(`${root}/`) ? [Number(pid)] : [];
  });
}

/** Time for processes to end after SIGKILL. */
const KILL_TIMEOUT_MS = 5_000;

/**
 * Ends every process of a sandbox, including those that left their group, session and parent. Repeats until none is
 * found, because a process may fork before it is killed.
 * @throws SandboxError internal when some remain after five seconds.
 */
export async function killProcesses(root: string): Promise<void> {
  const startedAtMs = performance.now();
  for (let pauseMs = 1; ; pauseMs = Math.min(pauseMs * 2, 50)) {
    const pids = await findProcesses(root);
    if (pids.length === 0) return;
    if (performance.now() - startedAtMs > KILL_TIMEOUT_MS)
      throw new SandboxError("internal_error", `processes ${pids.join(", ")} do not end`);
    for (const pid of pids) {
      try {
        process.kill(pid, "SIGKILL");
      } catch {
        // Already gone, or owned by another user: then it is found again until the timeout.
      }
    }
    await sleep(pauseMs);
  }
}

/** Age up to which one look serves all who ask: a round of samples asks for each sandbox. */
const MAX_AGE_MS = 1_000;

interface Look {
  readonly atMs: number;
  /** By every directory that a process may belong to. */
  readonly found: Promise<ReadonlyMap<string, readonly number[]>>;
}

/** Processes of many sandboxes, found in one pass over those of the host. */
export class ProcessCensus {
  #last: Look | undefined;

  /** Processes of a sandbox, as `findProcesses`, a second ago or later. @param sinceMs not before this time. */
  async of(root: string, sinceMs: number): Promise<readonly number[]> {
    // Elsewhere a program of the host looks for one sandbox.
    if (process.platform !== "linux") return findProcesses(root);
    const nowMs = performance.now();
    const oldestMs = Math.max(sinceMs, nowMs - MAX_AGE_MS);
    if (this.#last === undefined || this.#last.atMs < oldestMs) this.#last = { atMs: nowMs, found: look() };
    return (await this.#last.found).get(root) ?? [];
  }
}

async function look(): Promise<ReadonlyMap<string, readonly number[]>> {
  const found = new Map<string, number[]>();
  for (const { pid, root, cwd } of await readTraces()) {
    const roots = new Set([root]);
    for (let path = cwd; path.length > 1; path = dirname(path)) roots.add(path);
    for (const each of roots) {
      const pids = found.get(each);
      if (pids === undefined) found.set(each, [pid]);
      else pids.push(pid);
    }
  }
  return found;
}
