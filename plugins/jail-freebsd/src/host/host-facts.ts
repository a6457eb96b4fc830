import { access, constants } from "node:fs/promises";

/** A reason why this host cannot run sandboxes, or with `warn` not for every client, with its fix. */
export interface HostProblem {
  readonly severity?: "warn";
  readonly message: string;
  readonly fix: string;
}

export async function isThere(path: string, mode = constants.F_OK): Promise<boolean> {
  return access(path, mode).then(
    () => true,
    () => false,
  );
}

export const isExecutable = (path: string): Promise<boolean> => isThere(path, constants.X_OK);

export interface EnforcedLimit {
  readonly name: "memoryMiB" | "cpuCount" | "processes" | "threads" | "diskMiB" | "openFiles" | "terminals";
  readonly isEnforced: boolean;
  /** Short text: `rctl(8), …`, `not enforced: …`. */
  readonly how: string;
}

/** @param reason why the kernel accounts for nothing; undefined when it does account. */
export function enforcedLimits(reason: string | undefined): readonly EnforcedLimit[] {
  const counted = (name: EnforcedLimit["name"], how: string): EnforcedLimit =>
    reason === undefined
      ? { name, isEnforced: true, how: `rctl(8), ${how}` }
      : { name, isEnforced: false, how: `not enforced: ${reason}` };
  return [
    counted("memoryMiB", "more is paged out, and what is reserved beyond memoryReservation is refused"),
    counted("cpuCount", "what exceeds it is slowed down"),
    counted("processes", "all of a sandbox together"),
    counted("threads", "all of a sandbox together"),
    { name: "diskMiB", isEnforced: true, how: "refquota of its dataset" },
    counted("openFiles", "all of a sandbox together"),
    counted("terminals", "all of a sandbox together"),
  ];
}
