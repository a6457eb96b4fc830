import { type Sandboxes, SandboxError } from "@coppice/core";
import { z } from "zod";
import { requestedTimeoutMs, timeoutFields } from "../bodies/requested-timeout.js";

/** The body of `POST /sandboxes/:id/timeout`. */
export const setTimeoutBody = z.object(timeoutFields);

/** Moves the end of a sandbox, nearer too; 0 or less ends it now. @throws SandboxError not_found, invalid_argument */
export async function setSandboxTimeout(
  sandboxes: Sandboxes,
  id: string,
  body: z.infer<typeof setTimeoutBody>,
): Promise<void> {
  const timeoutMs = requestedTimeoutMs(body);
  if (timeoutMs === undefined)
    throw new SandboxError("timeout_invalid", "validation error: timeout: it is required");
  await sandboxes.setTimeout(id, Math.max(timeoutMs, 0));
}
