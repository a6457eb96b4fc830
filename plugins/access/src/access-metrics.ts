import { Counter, type Registry } from "prom-client";

export function accessMetrics(registry: Registry) {
  const registers = [registry];
  const refused = new Counter({
    name: "coppice_access_refused_total",
    help: "Requests to the control plane that were not let in, by why.",
    labelNames: ["reason"],
    registers,
  });
  for (const reason of ["unauthenticated", "resource_exhausted"]) refused.inc({ reason }, 0);
  const lost = new Counter({
    name: "coppice_access_audit_lost_total",
    help: "Entries of the audit that could not be written.",
    registers,
  });
  return { refused, lost };
}
