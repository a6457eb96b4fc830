import {
  type Clock,
  type Logger,
  messageOf,
  type Principal,
  SandboxError,
  type Scope,
  SCOPES,
  PRINCIPAL_TYPES,
} from "@coppice/core";
import { createRemoteJWKSet, errors, type JWTPayload, jwtVerify } from "jose";
import type { JwtSettings } from "./access-config.js";
import { TENANT_NAME } from "./keys/tenant-name.js";

export interface JsonWebTokensOptions {
  readonly settings: JwtSettings;
  readonly clock: Clock;
  readonly log: Logger;
}

const MAX_SUBJECT = 200;
const NAMED_SCOPES: ReadonlyMap<string, Scope> = new Map(SCOPES.map((scope) => [`${scope}:sandbox`, scope]));

/** Tokens of an identity provider: RS256 only, verified by its published keys. */
export class JsonWebTokens {
  readonly #options: JsonWebTokensOptions;
  readonly #keys: ReturnType<typeof createRemoteJWKSet>;

  constructor(options: JsonWebTokensOptions) {
    this.#options = options;
    const { jwksUrl, cacheFor, refetchAfter, fetchTimeout } = options.settings;
    this.#keys = createRemoteJWKSet(new URL(jwksUrl), {
      cacheMaxAge: cacheFor,
      // A token with an unknown key has the set fetched again, but clients cannot force that at will.
      cooldownDuration: refetchAfter,
      timeoutDuration: fetchTimeout,
    });
  }

  /** @throws SandboxError unauthenticated for an invalid token, unavailable without the provider's keys. */
  async find(token: string): Promise<Principal> {
    return this.#principalOf(await this.#verify(token));
  }

  async #verify(token: string): Promise<JWTPayload> {
    const { settings, clock } = this.#options;
    try {
      const { payload } = await jwtVerify(
        token,
        (header, input) => {
          if (header.kid === undefined) throw new errors.JWKSNoMatchingKey();
          return this.#keys(header, input);
        },
        {
          algorithms: ["RS256"],
          requiredClaims: ["exp", "sub"],
          clockTolerance: settings.clockTolerance / 1000,
          currentDate: new Date(clock.now()),
          ...(settings.issuer !== undefined && { issuer: settings.issuer }),
          ...(settings.audience !== undefined && { audience: settings.audience }),
        },
      );
      return payload;
    } catch (error) {
      throw this.#refusalOf(error);
    }
  }

  #refusalOf(error: unknown): SandboxError {
    const isProvider =
      error instanceof errors.JWKSTimeout ||
      error instanceof errors.JWKSInvalid ||
      // Other errors come from fetching; JOSEError itself is thrown for an answer that is not 200.
      !(error instanceof errors.JOSEError) ||
      error.constructor === errors.JOSEError;
    if (!isProvider) {
      const text =
        error instanceof errors.JWTExpired ? "the access token has expired" : "the access token is not valid";
      return new SandboxError("credential_invalid", text, { cause: error });
    }
    const { log, settings } = this.#options;
    log.error({ jwksUrl: settings.jwksUrl, reason: messageOf(error) }, "keys for JWTs cannot be fetched");
    const text = "access tokens cannot be checked at the moment";
    return new SandboxError("identity_provider_unavailable", text, { cause: error });
  }

  #principalOf(payload: JWTPayload): Principal {
    const { sub = "", act, principal_type: type } = payload;
    if (sub === "" || sub.length > MAX_SUBJECT) throw notValid();
    const acting = (act as { readonly sub?: unknown } | undefined)?.sub;
    const actor = typeof acting === "string" ? acting.slice(0, MAX_SUBJECT) : undefined;
    return {
      tenant: this.#tenantOf(payload, sub),
      name: actor === undefined ? sub : `${actor} for ${sub}`,
      scopes: scopesIn(payload),
      type: PRINCIPAL_TYPES.find((known) => known === type),
      actor,
    };
  }

  /** The organization, or for people without one a personal tenant whose name no organization can have. */
  #tenantOf(payload: JWTPayload, sub: string): string {
    const organization = payload[this.#options.settings.tenantClaim];
    if (organization === undefined || organization === null || organization === "") return `sub:${sub}`;
    if (typeof organization !== "string" || !TENANT_NAME.test(organization)) throw notValid();
    return organization;
  }
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
  return new SandboxError("credential_invalid", "the access token is not valid");
}
