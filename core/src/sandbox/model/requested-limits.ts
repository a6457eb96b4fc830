import { SandboxError } from "../../kernel/errors.js";
import type { Limits } from "../contract/backend.js";
import type { SandboxesConfig } from "./sandboxes-config.js";

/** Limits that clients may choose. Absent = unchanged, 0 = the template's. */
export type LimitsChange = Pick<Limits, "cpuCount" | "memoryMiB" | "diskMiB">;

const UNITS = { cpuCount: "CPUs", memoryMiB: "MiB of memory", diskMiB: "MiB of disk" } as const;

export interface RequestedLimitsOptions {
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
