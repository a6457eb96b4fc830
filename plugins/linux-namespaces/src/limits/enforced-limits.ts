import type { Controller } from "./control-groups.js";

export interface EnforcedLimit {
  readonly name: "memoryMiB" | "cpuCount" | "processes" | "diskMiB" | "openFiles" | "pausing";
  /** `whole` sandbox, `part` of the named resource, or not at all. */
  readonly reach: "whole" | "part" | "none";
  /** Short text: `control groups of version 2`, `not enforced: …`. */
  readonly how: string;
}

interface LimitMeans {
  readonly controllers: ReadonlyMap<Controller, 1 | 2>;
  /** True when processes are counted per sandbox, in its user namespace. */
  readonly countsProcesses: boolean;
  readonly keepsLayersInMemory: boolean;
  readonly hasProjectQuotas: boolean;
  readonly endsPastDisk: boolean;
}

export function enforcedLimits(means: LimitMeans): readonly EnforcedLimit[] {
  const { controllers, countsProcesses } = means;
  const byGroup = (controller: Controller): Omit<EnforcedLimit, "name"> | undefined => {
    const version = controllers.get(controller);
    return version && { reach: "whole", how: `control groups of version ${version}` };
  };
  const missing = (controller: Controller): Omit<EnforcedLimit, "name"> => ({
    reach: "none",
    how: `not enforced: there is no controller ${controller} that this server may use`,
  });
  const data = "a resource limit on the data of each process, not of all together";
  const processes = "a resource limit on the processes of each of its users";
  return [
    { name: "memoryMiB", ...(byGroup("memory") ?? { reach: "part", how: data }) },
    { name: "cpuCount", ...(byGroup("cpu") ?? missing("cpu")) },
    {
      name: "processes",
      ...(byGroup("pids") ?? (countsProcesses ? { reach: "part", how: processes } : missing("pids"))),
    },
    { name: "diskMiB", ...disk(means) },
    { name: "openFiles", reach: "whole", how: "a resource limit of each process" },
    { name: "pausing", ...(byGroup("freezer") ?? missing("freezer")) },
  ];
}

function disk({
  endsPastDisk,
  keepsLayersInMemory,
  hasProjectQuotas,
}: LimitMeans): Omit<EnforcedLimit, "name"> {
  if (keepsLayersInMemory) return { reach: "whole", how: "the size of a file system in memory" };
  if (hasProjectQuotas) return { reach: "whole", how: "a project quota of the file system" };
  if (endsPastDisk) return { reach: "part", how: "measured, ends sandboxes that take up more" };
  return { reach: "part", how: "measured, holds back what is written over the API, not what programs write" };
}
