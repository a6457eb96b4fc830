import type { Limits } from "./backend.js";

/** Limits without gaps. */
export type FullLimits = { readonly [K in keyof Limits]-?: number };

/** The requested limits, with defaults for the rest. */
export function fullLimits(asked: Limits, defaults: FullLimits): FullLimits {
  return {
    cpuCount: asked.cpuCount ?? defaults.cpuCount,
    memoryMiB: asked.memoryMiB ?? defaults.memoryMiB,
    diskMiB: asked.diskMiB ?? defaults.diskMiB,
    processes: asked.processes ?? defaults.processes,
  };
}
