import type { Sandboxes } from "../../sandbox/life/sandboxes.js";
import { DEFAULT_TENANT } from "../../sandbox/model/tenant.js";
import { type RequestCarrier, requestOf } from "./surface-request.js";

/**
 * The tenant that a request acts for: the owner of what it makes, and of all that it may be shown. Records of a
 * plugin's own keep it beside their id, and are looked up by both.
 */
export function tenantOf(carrier: RequestCarrier): string {
  const { principal, target } = requestOf(carrier);
  return principal?.tenant ?? target?.sandbox.record.owner ?? DEFAULT_TENANT;
}

/**
 * The sandboxes that whoever asks may know of; to be used wherever a request names a sandbox in its path, query
 * or body.
 * @throws Error for a request that is addressed to a sandbox: its bearer may know of that one alone, by `targetOf`.
 */
export function sandboxesOf(carrier: RequestCarrier, sandboxes: Sandboxes): Sandboxes {
  if (requestOf(carrier).target !== undefined)
    throw new Error("a request that is addressed to a sandbox has no others");
  return sandboxes.of(tenantOf(carrier));
}
