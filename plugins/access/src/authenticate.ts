import { type Principal, SandboxError, type SurfaceRequest } from "@coppice/core";
import { API_KEY_FORM } from "./keys/api-key.js";
import type { ApiKeys } from "./keys/api-keys.js";
import type { JsonWebTokens } from "./json-web-tokens.js";

export interface Credentials {
  readonly apiKeys: ApiKeys;
  /** Undefined when no provider is configured. */
  readonly tokens: JsonWebTokens | undefined;
}

const BEARER = /^bearer +(\S+)$/i;
const JWT_FORM = /^[\w-]+\.[\w-]+\.[\w-]*$/;

/** Finds the principal of a request, by a key or a JWT. @throws SandboxError unauthenticated with E2B's texts. */
export async function authenticate(
  { headers }: Pick<SurfaceRequest, "headers">,
  { apiKeys, tokens }: Credentials,
): Promise<Principal> {
  const key = headers["x-api-key"];
  const bearer = BEARER.exec(headers.authorization ?? "")?.[1];
  const given = typeof key === "string" && key !== "" ? key : bearer;
  if (given === undefined) throw new SandboxError("credential_missing", "authorization header is missing");
  if (given === bearer && tokens !== undefined && JWT_FORM.test(given)) return tokens(given);
  const principal = apiKeys.find(given);
  if (principal !== undefined) return principal;
  const isKey = API_KEY_FORM.test(given);
  const message = isKey ? "Cannot get the team for the given API key" : "Invalid API key format";
  throw new SandboxError("credential_invalid", message);
}
