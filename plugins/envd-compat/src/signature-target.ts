import { setImmediate } from "node:timers/promises";
import { ENVD_PORT, SandboxError, type Sandboxes, type Targets } from "@coppice/core";
import { parseSignedFileRequest, SignatureCheck } from "./file-signature.js";

type TargetResolver = Parameters<Targets["add"]>[0];

// A few milliseconds of hashing between turns of the event loop.
const TRIED_AT_ONCE = 1000;

/**
 * Finds the sandbox of a signed file URL that names none: with `E2B_SANDBOX_URL` the SDKs make URLs of a path and a
 * signature alone. Tokens are unique, so at most one sandbox matches, of this server or of another one.
 */
export function signatureTarget(sandboxes: Sandboxes): TargetResolver {
  return async (message, url) => {
    const signed = parseSignedFileRequest(methodOf(message), url);
    if (signed === undefined) return undefined;
    const check = new SignatureCheck(signed);
    let tried = 0;
    for (const sandbox of sandboxes.list()) {
      const { accessToken } = sandbox.record;
      if (accessToken === undefined || !sandbox.isReachable) continue;
      if (check.isMadeWith(accessToken)) return { sandbox, port: ENVD_PORT };
      tried += 1;
      if (tried % TRIED_AT_ONCE === 0) await setImmediate();
    }
    return {
      sandboxId: undefined,
      refusal: new SandboxError("signature_invalid", "invalid signature"),
    };
  };
}

/** The method of the request, or the one that a browser's preflight asks for. */
function methodOf({ method = "", headers }: Parameters<TargetResolver>[0]): string {
  return method === "OPTIONS" ? (headers["access-control-request-method"] ?? "") : method;
}
