import { clientOf, type Guard, type Principal, SandboxError, type SurfaceRequest } from "@coppice/core";
import { RateLimiterMemory, RateLimiterRes } from "rate-limiter-flexible";
import type { JsonWebTokens } from "./json-web-tokens.js";
import { API_KEY_FORM, type ApiKeys } from "./keys/key-store.js";
import { REASONS } from "./reasons.js";
import type { RateSettings } from "./access-config.js";

/** Counts a request of a client. @throws SandboxError resource_exhausted with the time until there is room again. */
type RateLimit = (who: string) => Promise<void>;

/**
 * Rate limit for each of many clients: so many requests in a window that begins with the first.
 * @param settings called at each request; a window that has begun keeps its length.
 */
export function rateLimit(settings: () => RateSettings): RateLimit {
  const limiter = new RateLimiterMemory({ points: 1, duration: 1 });
  return async (who) => {
    const { requests, per } = settings();
    limiter.points = requests;
    limiter.duration = per / 1000;
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

interface AccessGuardOptions {
  readonly apiKeys: ApiKeys;
  /** Returns undefined when no provider is configured. */
  readonly tokens: () => JsonWebTokens | undefined;
  readonly perAddress: RateLimit;
  readonly perKey: RateLimit;
  /** Called with the reason of each refusal. */
  readonly onRefused: (code: string) => void;
}

const BEARER = /^bearer +(\S+)$/i;
const JWT_FORM = /^[\w-]+\.[\w-]+\.[\w-]*$/;

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

/** Finds the principal of a request, by a key or a JWT. @throws SandboxError unauthenticated with E2B's texts. */
async function authenticate(
  { headers }: Pick<SurfaceRequest, "headers">,
  { apiKeys, tokens: currentTokens }: AccessGuardOptions,
): Promise<Principal> {
  const key = headers["x-api-key"];
  const bearer = BEARER.exec(headers.authorization ?? "")?.[1];
  const given = typeof key === "string" && key !== "" ? key : bearer;
  if (given === undefined) throw new SandboxError("credential_missing", "authorization header is missing");
  const tokens = currentTokens();
  if (given === bearer && tokens !== undefined && JWT_FORM.test(given)) return tokens(given);
  const principal = apiKeys.find(given);
  if (principal !== undefined) return principal;
  const isKey = API_KEY_FORM.test(given);
  const message = isKey ? "Cannot get the team for the given API key" : "Invalid API key format";
  throw new SandboxError(REASONS.credential_invalid, message);
}
