import { describeEnd } from "../../sandbox/model/describe-end.js";
import type { Sandboxes } from "../../sandbox/life/sandboxes.js";
import { UnknownSandbox } from "../../sandbox/contract/unknown-sandbox.js";
import type { SurfaceRequest } from "./surface-request.js";
import { tenantOf } from "./tenant-of.js";

/**
 * Adds to the answer for an unknown sandbox how it ended, if the client belongs to its tenant. For others it never
 * existed. Never rejects.
 * @returns the error to answer.
 */
export async function explainEnd(
  error: unknown,
  request: SurfaceRequest,
  endOf: Sandboxes["endOf"],
): Promise<unknown> {
  if (!(error instanceof UnknownSandbox)) return error;
  try {
    const ended = await endOf(error.sandboxId);
    return ended?.owner !== tenantOf(request)
      ? error
      : new UnknownSandbox(error.sandboxId, describeEnd(ended));
  } catch (failure) {
    request.log.error({ err: failure }, "the end of a sandbox could not be looked up");
    return error;
  }
}
