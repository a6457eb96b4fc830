import { type Sandboxes, SandboxError } from "@coppice/core";
import { z } from "zod";
import { limitFields, requestedLimits } from "../bodies/requested-limits.js";

/** The body of `PATCH /sandboxes/:id/limits`. */
export const setLimitsBody = z.object(limitFields);

/** Changes the limits of a sandbox. @throws SandboxError invalid_argument, the errors of `Sandboxes.setLimits` */
export async function setSandboxLimits(
  sandboxes: Sandboxes,
  id: string,
  body: z.infer<typeof setLimitsBody>,
): Promise<void> {
  const change = requestedLimits(body);
  if (Object.values(change).every((limit) => limit === undefined)) {
    const text = "validation error: expected cpuCount, memoryMB or diskSizeMB";
    throw new SandboxError("request_invalid", text);
  }
  await sandboxes.setLimits(id, change);
}
