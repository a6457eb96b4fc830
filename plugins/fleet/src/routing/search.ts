import { HttpError, SandboxError, type Targets } from "@coppice/core";
import { z } from "zod";

/** A question to another server: is this request for one of its sandboxes? */
export type Search = z.infer<typeof search>;

export const search = z.object({
  method: z.string(),
  /** With the query. */
  path: z.string().startsWith("/"),
  listener: z.string(),
  /** Method that a browser's preflight asks for. */
  preflight: z.string().optional(),
});

export const searchAnswer = z.object({ isHere: z.boolean() });

/** The answer of this server. */
export async function searchHere(
  { method, path, listener, preflight }: Search,
  targets: Pick<Targets, "findHere">,
): Promise<z.infer<typeof searchAnswer>> {
  const headers = preflight === undefined ? {} : { "access-control-request-method": preflight };
  try {
    const target = await targets.findHere({ method, headers }, new URL(path, "http://fleet"), listener);
    return { isHere: target !== undefined };
  } catch (error) {
    if (error instanceof SandboxError || error instanceof HttpError) return { isHere: false };
    throw error;
  }
}
