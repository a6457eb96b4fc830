import type { Sandboxes } from "@coppice/core";
import { z } from "zod";

/** The body of `POST /sandboxes/:id/refreshes`; seconds. */
export const refreshBody = z.object({ duration: z.int().min(0).max(3600).nullish() });

/** Extends the life of a sandbox, never shortens it. @throws SandboxError not_found, invalid_argument */
export async function refreshSandbox(
  sandboxes: Sandboxes,
  id: string,
  { body, leastMs }: { readonly body: z.infer<typeof refreshBody>; readonly leastMs: number },
): Promise<void> {
  await sandboxes.extend(id, Math.max((body.duration ?? 0) * 1000, leastMs));
}
