import { HttpError, SandboxError } from "@coppice/core";

/** Translates the error of a write for HTTP: a full disk is 507, not the 429 of other exhausted resources. */
export function toStorageError(error: unknown): unknown {
  return error instanceof SandboxError && error.shortage !== undefined
    ? new HttpError(507, error.message, { reason: error })
    : error;
}
