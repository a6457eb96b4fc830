import { dirname } from "node:path";
import { findProcesses, readTraces } from "./host-processes.js";

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
