import { HttpError, SandboxError } from "@coppice/core";

/** What a write failed with, as HTTP has it: no room is 507, not the 429 of other exhausted things. */
export function toStorageError(error: unknown): unknown {
  return error instanceof SandboxError && error.shortage !== undefined
    ? new HttpError(507, error.message)
    : error;
}
