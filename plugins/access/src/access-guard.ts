import { clientOf, type Guard, SandboxError } from "@coppice/core";
import { authenticate, type Credentials } from "./authenticate.js";
import type { RateLimit } from "./rate-limit.js";

export interface AccessGuardOptions extends Credentials {
  readonly perAddress: RateLimit;
  readonly perKey: RateLimit;
  /** Called with the reason of each refusal. */
  readonly onRefused: (code: string) => void;
}

/** Admits clients with a key or a token, within the rate limits, and everyone to `/health`. */
export function accessGuard(options: AccessGuardOptions): Guard {
  return async (request) => {
    const { method, url, clientAddress } = request;
    try {
      // Before anything more expensive than counting.
      await options.perAddress(clientOf(clientAddress));
      if (url.pathname === "/health" && (method === "GET" || method === "HEAD")) return undefined;
      const principal = await authenticate(request, options);
      await options.perKey(`${principal.tenant} ${principal.name}`);
      return principal;
    } catch (error) {
      if (error instanceof SandboxError) options.onRefused(error.code);
      throw error;
    }
  };
}
