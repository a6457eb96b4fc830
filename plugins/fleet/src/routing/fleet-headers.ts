import type { IncomingMessage } from "node:http";
import type { Peers, Principal, SurfaceRequest } from "@coppice/core";
import { HOP_BY_HOP, SCOPES, PRINCIPAL_TYPES, SandboxError, traceHeaders } from "@coppice/core";
import { z } from "zod";
import type { ProvenRequest, RequestProver, RequestVerifier } from "../trust/request-proof.js";
import { REASONS } from "../reasons.js";

export type PeerFinder = Parameters<Peers["use"]>[0];

/** All headers between servers begin so; a client's are left out, and no program in a sandbox sees one. */
const PREFIX = "coppice-fleet-";
/** That a server of the fleet sends the request: what the other two say counts only with it. */
const PROOF = `${PREFIX}proof`;
const LISTENER = `${PREFIX}listener`;
const PRINCIPAL = `${PREFIX}principal`;

/** Of one connection, or said anew. A body that is chunked stays so. */
const LEFT_OUT: ReadonlySet<string> = new Set([
  ...[...HOP_BY_HOP].filter((name) => name !== "transfer-encoding"),
  "x-request-id",
  "x-forwarded-for",
  "x-forwarded-proto",
]);

const sender = z.object({
  tenant: z.string(),
  name: z.string(),
  scopes: z.array(z.enum(SCOPES)).transform((scopes) => new Set(scopes)),
  type: z.enum(PRINCIPAL_TYPES).optional(),
  actor: z.string().optional(),
});

/** Header lines of a request on its way to another server, but for the proof: names and values in turn. */
export function passedOnHeaders({ rawHeaders }: IncomingMessage, request: SurfaceRequest): string[] {
  const trace = traceHeaders();
  const lines = withoutOwn(rawHeaders, new Set([...LEFT_OUT, ...Object.keys(trace)]));
  lines.push(...Object.entries(trace).flat());
  lines.push(LISTENER, request.surface, "x-request-id", request.id);
  lines.push("x-forwarded-for", request.clientAddress, "x-forwarded-proto", request.protocol);
  if (request.principal !== undefined) lines.push(PRINCIPAL, encode(request.principal));
  return lines;
}

/** The header line with the proof, which is good for one attempt. */
export function proofLine(
  prover: RequestProver,
  { method = "", url: path = "" }: Pick<IncomingMessage, "method" | "url">,
  request: SurfaceRequest,
): readonly [name: string, value: string] {
  return [PROOF, prover.proofOf({ method, path, ...toldOf(request) })];
}

/** Headers of a request that this server makes: for the client of another one, or for itself. */
export function ownHeaders(
  prover: RequestProver,
  { method, path }: Pick<ProvenRequest, "method" | "path">,
  request?: SurfaceRequest,
): Readonly<Record<string, string>> {
  const { listener, principal } = toldOf(request);
  return {
    [PROOF]: prover.proofOf({ method, path, listener, principal }),
    ...(request && { [LISTENER]: request.surface, "x-request-id": request.id }),
    ...(principal !== undefined && { [PRINCIPAL]: principal }),
  };
}

export function passedBackHeaders(rawHeaders: readonly string[]): string[] {
  return withoutOwn(rawHeaders, LEFT_OUT);
}

/**
 * Takes what another server has said out of the headers of a request.
 * @throws SandboxError fleet_peer_unknown for a sender that does not prove the secret.
 */
export function takeArrival(
  message: IncomingMessage,
  { verifier, own }: { readonly verifier: RequestVerifier; readonly own: string },
): ReturnType<PeerFinder["arrivalOf"]> {
  const { headers, method = "", url: path = "" } = message;
  const [proof, listener, principal] = [PROOF, LISTENER, PRINCIPAL].map((name) => {
    const given = headers[name];
    return typeof given === "string" ? given : undefined;
  });
  for (const name of Object.keys(headers)) if (name.startsWith(PREFIX)) delete headers[name];
  message.rawHeaders.splice(0, Infinity, ...withoutOwn(message.rawHeaders, new Set()));
  verifier.require({ method, path, listener, principal }, proof);
  return { listener: listener ?? own, principal: principal === undefined ? undefined : decode(principal) };
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

function toldOf(request: SurfaceRequest | undefined): Pick<ProvenRequest, "listener" | "principal"> {
  return { listener: request?.surface, principal: request?.principal && encode(request.principal) };
}

function encode({ scopes, ...rest }: Principal): string {
  return Buffer.from(JSON.stringify({ ...rest, scopes: [...scopes] })).toString("base64url");
}

/** @throws SandboxError where another version wrote it. */
function decode(text: string): Principal {
  try {
    return sender.parse(JSON.parse(Buffer.from(text, "base64url").toString()));
  } catch (error) {
    throw new SandboxError(
      REASONS.fleet_peer_unknown,
      "the other server names a sender that this one cannot read",
      {
        cause: error,
      },
    );
  }
}
