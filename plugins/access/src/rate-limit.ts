import { SandboxError } from "@coppice/core";
import { RateLimiterMemory, RateLimiterRes } from "rate-limiter-flexible";
import type { RateSettings } from "./access-config.js";
import { REASONS } from "./reasons.js";

/** Counts a request of a client. @throws SandboxError resource_exhausted with the time until there is room again. */
export type RateLimit = (who: string) => Promise<void>;

/** Rate limit for each of many clients: so many requests in a window that begins with the first. */
export function rateLimit({ requests, per }: RateSettings): RateLimit {
  const limiter = new RateLimiterMemory({ points: requests, duration: per / 1000 });
  return async (who) => {
    try {
      await limiter.consume(who);
    } catch (error) {
      if (!(error instanceof RateLimiterRes)) throw error;
      throw new SandboxError(REASONS.rate_limited, "too many requests", {
        retryAfterSeconds: Math.max(Math.ceil(error.msBeforeNext / 1000), 1),
      });
    }
  };
}
