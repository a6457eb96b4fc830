import { MEBIBYTE } from "../../config/units.js";
import type { Limits } from "../contract/backend.js";
import type { LiveSandbox } from "./live-sandbox.js";

export interface Capacity {
  readonly cpuCount: number;
  readonly memoryMiB: number;
  readonly diskMiB: number;
}

const UNKNOWN: Capacity = { cpuCount: 0, memoryMiB: 0, diskMiB: 0 };

/** Capacity of sandboxes: their limits, and for a missing limit a measurement of the backend, taken once. */
export class Capacities {
  /** By the limits of that time: others may differ. */
  readonly #measured = new WeakMap<Limits, Promise<Capacity>>();

  /** Never rejects: failed measurements (of an ending sandbox) count as 0. */
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
    memoryMiB: stats.memoryTotalBytes / MEBIBYTE,
    diskMiB: stats.diskTotalBytes / MEBIBYTE,
  };
}
