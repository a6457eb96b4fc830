import { type LiveSandbox, type Sandboxes, SandboxError } from "@coppice/core";
import { z } from "zod";
import { requestedTimeoutMs, timeoutFields } from "../bodies/requested-timeout.js";

/** The body of `POST /sandboxes/:id/resume`, which clients before `connect` use. */
export const resumeBody = z.object({ ...timeoutFields, memory: z.boolean().nullish() });

/**
 * Resumes a paused sandbox.
 * @param defaultTimeoutMs time-out for a body without one.
 * @throws SandboxError not_found, aborted when it runs already, invalid_argument
 */
export async function resumeSandbox(
  sandboxes: Sandboxes,
  id: string,
  {
    body,
    defaultTimeoutMs,
  }: { readonly body: z.infer<typeof resumeBody>; readonly defaultTimeoutMs: number },
): Promise<LiveSandbox> {
  const timeoutMs = requestedTimeoutMs(body) ?? defaultTimeoutMs;
  const wasPaused = await sandboxes.resume(id, timeoutMs, { keepsMemory: body.memory ?? true });
  if (!wasPaused) throw new SandboxError("sandbox_state_conflict", `Sandbox ${id} is already running`);
  return sandboxes.get(id);
}
