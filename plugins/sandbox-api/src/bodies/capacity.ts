import type { Limits, LiveSandbox } from "@coppice/core";

/** Limits of a sandbox, as the API shows them. */
export interface Capacity {
  readonly cpuCount: number;
  readonly memoryMiB: number;
  readonly diskMiB: number;
}

const MIB = 2 ** 20;
const UNKNOWN: Capacity = { cpuCount: 0, memoryMiB: 0, diskMiB: 0 };

/** Tells what sandboxes have: their limits, and where they have none, what their backend measures once. */
export class Capacities {
  /** By the limits that held when it was measured: others may bring others. */
  readonly #measured = new WeakMap<Limits, Promise<Capacity>>();

  /** Never rejects: what cannot be measured (a sandbox that is just ending) counts as 0. */
  async of(sandbox: LiveSandbox): Promise<Capacity> {
    const { cpuCount, memoryMiB, diskMiB } = sandbox.record.limits;
    if (cpuCount !== undefined && memoryMiB !== undefined && diskMiB !== undefined) {
      return { cpuCount, memoryMiB, diskMiB };
    }
    const measured = await this.#measure(sandbox).catch(() => UNKNOWN);
    return {
      cpuCount: cpuCount ?? measured.cpuCount,
      memoryMiB: memoryMiB ?? measured.memoryMiB,
      diskMiB: diskMiB ?? measured.diskMiB,
    };
  }

  #measure(sandbox: LiveSandbox): Promise<Capacity> {
    const { limits } = sandbox.record;
    const known = this.#measured.get(limits);
    if (known !== undefined) return known;
    const measuring = measure(sandbox);
    this.#measured.set(limits, measuring);
    measuring.catch(() => this.#measured.delete(limits));
    return measuring;
  }
}

async function measure(sandbox: LiveSandbox): Promise<Capacity> {
  const stats = await sandbox.stats();
  return {
    cpuCount: stats.cpuCount,
    memoryMiB: stats.memoryTotalBytes / MIB,
    diskMiB: stats.diskTotalBytes / MIB,
  };
}
