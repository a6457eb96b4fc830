import { MEBIBYTE } from "@coppice/core";
import type { BuildResult } from "../model/build-context.js";
import { type BuildLimits, LEAST_MEMORY_MIB } from "../model/build-record.js";
import type { BuildRequest } from "../model/build-request.js";
import type { TemplatesConfig } from "../templates-config.js";

/** Limits of a pushed template, as far as this server allows them; undefined where a build does not restore them. */
export function restoredLimits(
  { limits: asked, restore }: Pick<BuildRequest, "limits" | "restore">,
  { context: { limits } }: Pick<BuildResult, "context">,
  settings: Pick<
    TemplatesConfig,
    "maxCpuCount" | "maxMemory" | "maxDisk" | "defaultCpuCount" | "defaultMemory"
  >,
  warn: (message: string) => void,
): BuildLimits | undefined {
  if (restore?.limits !== true || limits === undefined) return undefined;
  const atMost = (wanted: number, most: number, unit: string): number => {
    if (wanted > most) warn(`The template has ${wanted} ${unit}, of which this server allows ${most}`);
    return Math.min(wanted, most);
  };
  const { diskMiB } = limits;
  const memoryMiB = limits.memoryMiB ?? asked.memoryMiB ?? Math.floor(settings.defaultMemory / MEBIBYTE);
  return {
    cpuCount: atMost(
      limits.cpuCount ?? asked.cpuCount ?? settings.defaultCpuCount,
      settings.maxCpuCount,
      "CPUs",
    ),
    memoryMiB: atMost(
      Math.max(memoryMiB, LEAST_MEMORY_MIB),
      Math.floor(settings.maxMemory / MEBIBYTE),
      "MiB of memory",
    ),
    diskMiB:
      diskMiB === undefined
        ? undefined
        : atMost(diskMiB, Math.floor(settings.maxDisk / MEBIBYTE), "MiB of disk"),
  };
}
