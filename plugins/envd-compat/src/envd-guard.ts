import { type Clock, type Guard, SandboxError, type SurfaceRequest, secretEqual } from "@coppice/core";
import { presentedToken, requireToken } from "./access-token.js";
import { fileOperation, parseSignedFileRequest, SignatureCheck } from "./file-signature.js";
import { RESERVED_PATHS } from "./reserved-paths.js";

const DOWNLOAD_LINK = /^\/files\/download-token\/[\w.-]+$/;

/**
 * Requires the token of a sandbox: by `X-Access-Token`, or for files by a signature made with it. Open are `/health`,
 * download links, which carry their own proof, and paths that are always refused.
 */
export function envdGuard(clock: Clock): Guard {
  return (request) => {
    const token = request.target?.sandbox.record.accessToken;
    if (token === undefined) return;
    const { method, url } = request;
    // Exact paths only: other spellings that a router might accept stay protected.
    if (method === "GET" && url.pathname === "/health") return;
    if (RESERVED_PATHS.includes(url.pathname)) return;
    // The link itself is the proof, which its route verifies.
    if (DOWNLOAD_LINK.test(url.pathname) && (method === "GET" || method === "HEAD")) return;
    if (fileOperation(method, url) === undefined) requireToken(request, token);
    else checkFileAccess(request, token, clock.now());
  };
}

function checkFileAccess(request: SurfaceRequest, token: string, nowMs: number): void {
  const presented = presentedToken(request);
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
