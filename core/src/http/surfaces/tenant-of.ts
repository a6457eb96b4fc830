import type { Sandboxes } from "../../sandbox/life/sandboxes.js";
import { DEFAULT_TENANT } from "../../sandbox/model/tenant.js";
import { type RequestCarrier, requestOf } from "./surface-request.js";

/**
 * The tenant that a request acts for: the owner of everything that it makes or may see. Plugins' own records keep it
 * beside their id, and are looked up by both.
 */
export function tenantOf(carrier: RequestCarrier): string {
  const { principal, target } = requestOf(carrier);
  return principal?.tenant ?? target?.sandbox.record.owner ?? DEFAULT_TENANT;
}

/**
 * The sandboxes that a request's sender may see; use it wherever a request names a sandbox in its path, query or body.
 * @throws Error for a request addressed to a sandbox: its bearer may see that one alone, by `targetOf`.
 */
export function sandboxesOf(carrier: RequestCarrier, sandboxes: Sandboxes): Sandboxes {
  const { target, isPassedOn } = requestOf(carrier);
  if (target !== undefined) throw new Error("a request that is addressed to a sandbox has no others");
  return sandboxes.of(tenantOf(carrier), { mayPlace: !isPassedOn });
}
