import {
  type Clock,
  DEFAULT_TENANT,
  type Logger,
  messageOf,
  type Principal,
  PRINCIPAL_TYPES,
  SandboxError,
  SCOPES,
} from "@coppice/core";
import { createRemoteJWKSet, errors, type JWTPayload, jwtVerify, type JWTVerifyGetKey } from "jose";
import type { JwtSettings } from "./access-config.js";
import { type Scope, TENANT_NAME } from "./keys/key-store.js";
import { REASONS } from "./reasons.js";

export interface JsonWebTokensOptions {
  readonly settings: JwtSettings;
  readonly clock: Clock;
  readonly log: Logger;
}

const MAX_SUBJECT = 200;
const KEYS_KEPT_MS = 10 * 60_000;
const FETCH_TIMEOUT_MS = 5_000;
const NAMED_SCOPES: ReadonlyMap<string, Scope> = new Map(SCOPES.map((scope) => [`${scope}:sandbox`, scope]));

/**
 * Finds the principal of a token. @throws SandboxError unauthenticated for an invalid one, unavailable without the
 * provider's keys.
 */
export type JsonWebTokens = (token: string) => Promise<Principal>;

/** Tokens of an identity provider: RS256 only, verified by its published keys. */
export function jsonWebTokens({ settings, clock, log }: JsonWebTokensOptions): JsonWebTokens {
  const { jwksUrl, issuer, audience } = settings;
  const keys = createRemoteJWKSet(new URL(jwksUrl), {
    cacheMaxAge: KEYS_KEPT_MS,
    // A token with an unknown key has the set fetched again, but clients cannot force that at will.
    cooldownDuration: settings.refetchAfter,
    timeoutDuration: FETCH_TIMEOUT_MS,
  });
  const keyOf: JWTVerifyGetKey = (header, input) => {
    if (header.kid === undefined) throw new errors.JWKSNoMatchingKey();
    return keys(header, input);
  };
  return async (token) => {
    try {
      const { payload } = await jwtVerify(token, keyOf, {
        algorithms: ["RS256"],
        requiredClaims: ["exp", "sub"],
        clockTolerance: settings.clockTolerance / 1000,
        currentDate: new Date(clock.now()),
        ...(issuer !== undefined && { issuer }),
        ...(audience !== undefined && { audience }),
      });
      return principalOf(payload, settings.tenantClaim);
    } catch (error) {
      if (error instanceof SandboxError) throw error;
      if (!isOfProvider(error)) {
        const isExpired = error instanceof errors.JWTExpired;
        const text = isExpired ? "the access token has expired" : "the access token is not valid";
        throw new SandboxError(REASONS.credential_invalid, text, { cause: error });
      }
      log.error({ jwksUrl, reason: messageOf(error) }, "keys for JWTs cannot be fetched");
      const text = "access tokens cannot be checked at the moment";
      throw new SandboxError(REASONS.identity_provider_unavailable, text, { cause: error });
    }
  };
}

/** True when the provider's keys could not be had; false for a token that is not valid. */
function isOfProvider(error: unknown): boolean {
  if (error instanceof errors.JWKSTimeout || error instanceof errors.JWKSInvalid) return true;
  // Other errors come from fetching; JOSEError itself is thrown for an answer that is not 200.
  return !(error instanceof errors.JOSEError) || error.constructor === errors.JOSEError;
}

function principalOf(payload: JWTPayload, tenantClaim: string): Principal {
  const { sub = "", act, principal_type: type } = payload;
  if (sub === "" || sub.length > MAX_SUBJECT) throw notValid();
  const acting = (act as { readonly sub?: unknown } | undefined)?.sub;
  const actor = typeof acting === "string" ? acting.slice(0, MAX_SUBJECT) : undefined;
  return {
    tenant: tenantIn(payload[tenantClaim]) ?? `sub:${sub}`,
    name: actor === undefined ? sub : `${actor} for ${sub}`,
    scopes: scopesIn(payload),
    type: PRINCIPAL_TYPES.find((known) => known === type),
    actor,
  };
}

/** The organization; undefined for people without one, who get a tenant whose name no organization can have. */
function tenantIn(organization: unknown): string | undefined {
  if (organization === undefined || organization === null || organization === "") return undefined;
  if (typeof organization !== "string" || !TENANT_NAME.test(organization)) throw notValid();
  // The tenant of the configured keys is the operator's own: an organization that calls itself so is another.
  if (organization === DEFAULT_TENANT)
    throw new SandboxError(
      REASONS.credential_invalid,
      `the tenant '${DEFAULT_TENANT}' is for keys of this server alone`,
    );
  return organization;
}

/** `scp` is a list; some providers write `scope`, one text with spaces. */
function scopesIn({ scp, scope }: JWTPayload): ReadonlySet<Scope> {
  const names: readonly unknown[] = Array.isArray(scp)
    ? scp
    : typeof scope === "string"
      ? scope.split(" ")
      : [];
  return new Set(names.flatMap((name) => NAMED_SCOPES.get(String(name)) ?? []));
}

function notValid(): SandboxError {
  return new SandboxError(REASONS.credential_invalid, "the access token is not valid");
}
