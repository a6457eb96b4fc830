import { HttpError } from "@coppice/core";

/** Routes by which E2B's control plane calls envd. This server is both, so clients are refused. */
export const RESERVED_PATHS: readonly string[] = [
  "/init",
  "/freeze",
  "/unfreeze",
  "/collapse",
  "/fsfreeze",
  "/fsthaw",
  "/upgrade",
];

/** The answer of the E2B edge to a reserved path. */
export function reservedPathRefusal(path: string): HttpError {
  const message =
    "This endpoint is reserved for the E2B control plane and is not reachable through the sandbox URL";
  return new HttpError(404, message, { reason: "path_reserved", body: { message, path, code: 404 } });
}
