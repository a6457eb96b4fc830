import type { Sandbox, SandboxSpec } from "../contract/backend.js";
import { egressRulesOf } from "../contract/egress-rules.js";
import type { SandboxRecord } from "./live-sandbox.js";

export function specOf(record: SandboxRecord): SandboxSpec {
  const { id, template, build, snapshot, base, limits, allowInternetAccess, egress, mounts } = record;
  return {
    id,
    template,
    ...(build && { image: build.image }),
    snapshot: base ?? snapshot,
    limits,
    allowInternetAccess,
    egress: egress && egressRulesOf(record),
    mounts: mounts.map(({ volume, path, readOnly }) => ({ volume, path, readOnly })),
  };
}

/** Reason why a sandbox cannot pause as its record demands; undefined when it can. */
export function reasonAgainstPause(
  { backend, keepsMemory }: Pick<SandboxRecord, "backend" | "keepsMemory">,
  { pausing, stopping }: Sandbox,
): string | undefined {
  const [facet, how] = keepsMemory === false ? [stopping, " without memory"] : [pausing, ""];
  return facet === undefined ? `backend '${backend}' on this host does not support pausing${how}` : undefined;
}
