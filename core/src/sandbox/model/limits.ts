import { SandboxError } from "../../kernel/errors.js";
import type { Limits } from "../contract/backend.js";
import type { SandboxesConfig } from "./sandboxes-config.js";
import { MEBIBYTE } from "../../config/units.js";
import type { LiveSandbox } from "./live-sandbox.js";

/** Limits that clients may choose. Absent = unchanged, 0 = the template's. */
export type LimitsChange = Pick<Limits, "cpuCount" | "memoryMiB" | "diskMiB">;

const UNITS = { cpuCount: "CPUs", memoryMiB: "MiB of memory", diskMiB: "MiB of disk" } as const;

interface RequestedLimitsOptions {
  readonly settings: Pick<SandboxesConfig, "maximumLimits">;
  readonly template: string;
  /** Limits of a sandbox of the template whose creator sets none, those of its backend included. */
  readonly templateLimits: Limits;
}

/**
 * @throws SandboxError invalid_argument for more than `maximumLimits`, or than the template's limits where that is
 * silent.
 */
export function checkRequestedLimits(
  requested: LimitsChange,
  { settings, template, templateLimits }: RequestedLimitsOptions,
): void {
  for (const name of ["cpuCount", "memoryMiB", "diskMiB"] as const) {
    const wanted = requested[name] ?? 0;
    if (wanted === 0) continue;
    const most = settings.maximumLimits[name] ?? templateLimits[name];
    if (most === undefined) {
      const unset = `neither sandboxes.maximumLimits.${name} nor a limit of template '${template}' is set`;
      const text = `this server does not let clients choose ${UNITS[name]}: ${unset}`;
      throw new SandboxError("limits_invalid", text);
    }
    if (wanted > most) {
      const text = `${wanted} ${UNITS[name]} are more than a sandbox of template '${template}' may have (${most}): see sandboxes.maximumLimits.${name}`;
      throw new SandboxError("limits_invalid", text);
    }
  }
}

export function changedLimits(limits: Limits, change: LimitsChange, template: Limits): Limits {
  const chosen = (name: keyof LimitsChange): number | undefined => {
    const wanted = change[name];
    if (wanted === undefined) return limits[name];
    return wanted === 0 ? template[name] : wanted;
  };
  return {
    ...limits,
    cpuCount: chosen("cpuCount"),
    memoryMiB: chosen("memoryMiB"),
    diskMiB: chosen("diskMiB"),
  };
}

interface Capacity {
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
