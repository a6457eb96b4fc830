import { type LiveSandbox, type Sandboxes, SandboxError } from "@coppice/core";
import { z } from "zod";
import { requestedTimeoutMs, timeoutFields } from "./requested-timeout.js";

/** The body of both connect routes. */
export const connectBody = z.object(timeoutFields);

/**
 * Finds a running sandbox for a client and gives it at least the time that the body asks for.
 * @param defaultTimeoutMs what a body without a time-out means; undefined = it must name one.
 * @throws SandboxError not_found, invalid_argument
 */
export async function connectSandbox(
  sandboxes: Sandboxes,
  id: string,
  {
    body,
    defaultTimeoutMs,
  }: { readonly body: z.infer<typeof connectBody>; readonly defaultTimeoutMs?: number },
): Promise<LiveSandbox> {
  const sandbox = sandboxes.get(id);
  const timeoutMs = requestedTimeoutMs(body) ?? defaultTimeoutMs;
  if (timeoutMs === undefined)
    throw new SandboxError("invalid_argument", "validation error: timeout: it is required");
  await sandboxes.extend(id, timeoutMs);
  return sandbox;
}
