import {
  accessTokenOf,
  type Clock,
  type Guard,
  SandboxError,
  type SurfaceRequest,
  secretEqual,
  HttpError,
} from "@coppice/core";
import { fileOperation, parseSignedFileRequest, SignatureCheck } from "./file-signature.js";
import { REASONS } from "./reasons.js";

/** Routes by which E2B's control plane calls envd. This server is both, so clients are refused. */
const RESERVED_PATHS: readonly string[] = [
  "/init",
  "/freeze",
  "/unfreeze",
  "/collapse",
  "/fsfreeze",
  "/fsthaw",
  "/upgrade",
];

/** The answer of the E2B edge to a reserved path. */
function reservedPathRefusal(path: string): HttpError {
  const message =
    "This endpoint is reserved for the E2B control plane and is not reachable through the sandbox URL";
  return new HttpError(404, message, { reason: REASONS.path_reserved, body: { message, path, code: 404 } });
}

// The SDKs present the token to /execute only, not to these.
const WITHOUT_TOKEN = /^\/(health|contexts(\/[^/]+(\/restart)?)?)$/;

/**
 * Requires the token of a sandbox: by `X-Access-Token`, or for files by a signature made with it. `/health` is
 * open. Reserved paths are refused.
 */
export function envdGuard(clock: Clock): Guard {
  return (request) => {
    const { method, url } = request;
    // Here, because a request that is let in resumes a paused sandbox.
    if (RESERVED_PATHS.includes(url.pathname)) throw reservedPathRefusal(url.pathname);
    const token = request.target?.sandbox.record.accessToken;
    if (token === undefined) return;
    // Exact paths only: other spellings that a router might accept stay protected.
    if (method === "GET" && url.pathname === "/health") return;
    if (fileOperation(method, url) === undefined) requireToken(request, token);
    else checkFileAccess(request, token, clock.now());
  };
}

/** Requires the token of a sandbox wherever the SDKs present it; elsewhere it may be absent, but not wrong. */
export const codeGuard: Guard = (request) => {
  const token = request.target?.sandbox.record.accessToken;
  if (token === undefined) return;
  if (WITHOUT_TOKEN.test(request.url.pathname) && accessTokenOf(request.headers) === undefined) return;
  requireToken(request, token);
};

function requireToken({ headers }: SurfaceRequest, token: string): void {
  const presented = accessTokenOf(headers);
  if (presented !== undefined && secretEqual(token, presented)) return;
  throw new SandboxError(
    "access_token_invalid",
    "unauthorized access, please provide a valid access token or method signing if supported",
  );
}

function checkFileAccess(request: SurfaceRequest, token: string, nowMs: number): void {
  const presented = accessTokenOf(request.headers);
  if (presented !== undefined) {
    if (secretEqual(token, presented)) return;
    throw new SandboxError("access_token_invalid", "access token present in header but does not match");
  }
  const signed = parseSignedFileRequest(request.method, request.url);
  if (signed === undefined) throw new SandboxError("signature_invalid", "missing signature query parameter");
  const check = new SignatureCheck(signed);
  if (!check.isMadeWith(token)) throw new SandboxError("signature_invalid", "invalid signature");
  if (check.isExpired(nowMs)) throw new SandboxError("signature_expired", "signature is already expired");
}
