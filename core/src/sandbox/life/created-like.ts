import type { SandboxRecord } from "../model/live-sandbox.js";
import type { CreateSandbox } from "./sandboxes.js";

/** A request for another sandbox with the creation options of this one, and new secrets. */
export function createdLike(record: SandboxRecord): Omit<CreateSandbox, "id"> {
  return {
    owner: record.owner,
    template: record.template,
    snapshot: record.snapshot,
    timeoutMs: record.timeoutMs,
    onTimeout: record.onTimeout,
    keepsMemory: record.keepsMemory,
    autoResume: record.autoResume,
    metadata: record.metadata,
    environment: record.environment,
    secure: record.accessToken !== undefined,
    allowPublicTraffic: record.trafficAccessToken === undefined,
    maskRequestHost: record.maskRequestHost,
    limits: record.limits,
    allowInternetAccess: record.allowInternetAccess,
    egress: record.egress,
    mounts: record.mounts,
    backend: record.backend,
  };
}
