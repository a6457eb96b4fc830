import { SandboxError } from "@coppice/core";
import { RateLimiterMemory, RateLimiterRes } from "rate-limiter-flexible";
import type { RateSettings } from "./access-config.js";

/** So many requests in so much time, counted from the first on, for each of many. */
export class RateLimit {
  readonly #limiter: RateLimiterMemory;

  constructor({ requests, per }: RateSettings) {
    this.#limiter = new RateLimiterMemory({ points: requests, duration: per / 1000 });
  }

  /** Counts one. @throws SandboxError resource_exhausted that says when there is room again. */
  async take(who: string): Promise<void> {
    try {
      await this.#limiter.consume(who);
    } catch (error) {
      if (!(error instanceof RateLimiterRes)) throw error;
      throw new SandboxError("resource_exhausted", "too many requests", {
        retryAfterSeconds: Math.max(Math.ceil(error.msBeforeNext / 1000), 1),
      });
    }
  }
}
