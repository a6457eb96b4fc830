import { type LiveSandbox, type Sandboxes, SandboxError } from "@coppice/core";
import { z } from "zod";
import { requestedTimeoutMs, timeoutFields } from "../bodies/requested-timeout.js";

/** The body of both connect routes. */
export const connectBody = z.object({
  ...timeoutFields,
  // False: a paused sandbox starts again, with its files alone.
  memory: z.boolean().nullish(),
});

export interface Connected {
  readonly sandbox: LiveSandbox;
  /** False when it ran already. */
  readonly wasPaused: boolean;
}

/**
 * Finds a sandbox for a client, resumes it when it is paused, and extends its life to the body's time-out.
 * @param defaultTimeoutMs time-out for a body without one; undefined = required.
 * @throws SandboxError not_found, invalid_argument, aborted while it is being killed
 */
export async function connectSandbox(
  sandboxes: Sandboxes,
  id: string,
  {
    body,
    defaultTimeoutMs,
  }: { readonly body: z.infer<typeof connectBody>; readonly defaultTimeoutMs?: number },
): Promise<Connected> {
  const timeoutMs = requestedTimeoutMs(body) ?? defaultTimeoutMs;
  if (timeoutMs === undefined)
    throw new SandboxError("timeout_invalid", "validation error: timeout: it is required");
  const wasPaused = await sandboxes.resume(id, timeoutMs, { keepsMemory: body.memory ?? true });
  if (!wasPaused) await sandboxes.extend(id, timeoutMs);
  return { sandbox: sandboxes.get(id), wasPaused };
}
