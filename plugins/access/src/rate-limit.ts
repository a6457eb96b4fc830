import { SandboxError } from "@coppice/core";
import { RateLimiterMemory, RateLimiterRes } from "rate-limiter-flexible";
import type { RateSettings } from "./access-config.js";

/** Rate limit for each of many clients: so many requests in a window that begins with the first. */
export class RateLimit {
  readonly #limiter: RateLimiterMemory;

  constructor({ requests, per }: RateSettings) {
    this.#limiter = new RateLimiterMemory({ points: requests, duration: per / 1000 });
  }

  /** Counts a request. @throws SandboxError resource_exhausted with the time until there is room again. */
  async take(who: string): Promise<void> {
    try {
      await this.#limiter.consume(who);
    } catch (error) {
      if (!(error instanceof RateLimiterRes)) throw error;
      throw new SandboxError("rate_limited", "too many requests", {
        retryAfterSeconds: Math.max(Math.ceil(error.msBeforeNext / 1000), 1),
      });
    }
  }
}
