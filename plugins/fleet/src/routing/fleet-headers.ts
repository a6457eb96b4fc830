import type { IncomingMessage } from "node:http";
import type { Arrival, Principal, SurfaceRequest } from "@coppice/core";
import { HOP_BY_HOP, SCOPES, PRINCIPAL_TYPES, SandboxError, secretEqual } from "@coppice/core";
import { z } from "zod";

/** All headers between servers begin so; a client's are left out, and no program in a sandbox sees one. */
const PREFIX = "coppice-fleet-";
const SECRET = `${PREFIX}secret`;
const LISTENER = `${PREFIX}listener`;
const PRINCIPAL = `${PREFIX}principal`;

/** Of one connection, or said anew. A body that is chunked stays so. */
const LEFT_OUT: ReadonlySet<string> = new Set([
  ...[...HOP_BY_HOP].filter((name) => name !== "transfer-encoding"),
  "x-request-id",
  "x-forwarded-for",
  "x-forwarded-proto",
]);

const principal = z.object({
  tenant: z.string(),
  name: z.string(),
  scopes: z.array(z.enum(SCOPES)).transform((scopes) => new Set(scopes)),
  type: z.enum(PRINCIPAL_TYPES).optional(),
  actor: z.string().optional(),
});

/** Header lines of a request on its way to another server: names and values in turn. */
export function passedOnHeaders(
  { rawHeaders }: IncomingMessage,
  request: SurfaceRequest,
  { secret, listener }: { readonly secret: string; readonly listener: string },
): string[] {
  const lines = withoutOwn(rawHeaders, LEFT_OUT);
  lines.push(SECRET, secret, LISTENER, listener, "x-request-id", request.id);
  lines.push("x-forwarded-for", request.clientAddress, "x-forwarded-proto", request.protocol);
  if (request.principal !== undefined) lines.push(PRINCIPAL, encode(request.principal));
  return lines;
}

/** Headers of a request that this server makes: for the client of another one, or for itself. */
export function ownHeaders(secret: string, request?: SurfaceRequest): Readonly<Record<string, string>> {
  return {
    [SECRET]: secret,
    ...(request && { [LISTENER]: request.surface, "x-request-id": request.id }),
    ...(request?.principal && { [PRINCIPAL]: encode(request.principal) }),
  };
}

/** Header lines of an answer on its way to the client. */
export function passedBackHeaders(rawHeaders: readonly string[]): string[] {
  return withoutOwn(rawHeaders, LEFT_OUT);
}

/**
 * Takes what another server has said out of the headers of a request.
 * @throws SandboxError fleet_peer_unknown for a sender that does not have the secret.
 */
export function takeArrival(
  message: IncomingMessage,
  { secret, own }: { readonly secret: string; readonly own: string },
): Arrival {
  const { headers } = message;
  const given = headers[SECRET];
  const listener = headers[LISTENER];
  const sender = headers[PRINCIPAL];
  for (const name of Object.keys(headers)) if (name.startsWith(PREFIX)) delete headers[name];
  message.rawHeaders.splice(0, Infinity, ...withoutOwn(message.rawHeaders, new Set()));
  if (typeof given !== "string" || !secretEqual(secret, given))
    throw new SandboxError("fleet_peer_unknown", "only servers of the fleet are served here");
  return {
    listener: typeof listener === "string" ? listener : own,
    principal: typeof sender === "string" ? decode(sender) : undefined,
  };
}

function withoutOwn(rawHeaders: readonly string[], leftOut: ReadonlySet<string>): string[] {
  const kept: string[] = [];
  for (let index = 0; index < rawHeaders.length; index += 2) {
    const name = rawHeaders[index] ?? "";
    const lower = name.toLowerCase();
    if (!lower.startsWith(PREFIX) && !leftOut.has(lower)) kept.push(name, rawHeaders[index + 1] ?? "");
  }
  return kept;
}

function encode({ scopes, ...rest }: Principal): string {
  return Buffer.from(JSON.stringify({ ...rest, scopes: [...scopes] })).toString("base64url");
}

/** @throws SandboxError where another version wrote it. */
function decode(text: string): Principal {
  try {
    return principal.parse(JSON.parse(Buffer.from(text, "base64url").toString()));
  } catch (error) {
    throw new SandboxError(
      "fleet_peer_unknown",
      "the other server names a sender that this one cannot read",
      {
        cause: error,
      },
    );
  }
}
