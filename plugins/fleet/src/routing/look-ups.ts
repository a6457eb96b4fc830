import {
  clientOf,
  severalTenants,
  Shares,
  type SurfaceRequest,
  type Tenants,
  HttpError,
  SandboxError,
  type Targets,
} from "@coppice/core";
import { z } from "zod";

export type Asker = Pick<SurfaceRequest, "principal" | "clientAddress">;

/**
 * Look-ups of what this server does not know, at one time. Clients that guess must not keep the store and the other servers
 * busy, nor keep others from asking: those without a credential have a number of their own, which addresses share as
 * tenants do theirs.
 */
export class LookUps {
  readonly #ofTenants: Shares;
  readonly #ofStrangers: Shares;

  /** @param most of each of both kinds */
  constructor(most: number, tenants: Tenants) {
    this.#ofTenants = new Shares(most, tenants);
    this.#ofStrangers = new Shares(most, severalTenants());
  }

  /** @returns undefined where there are too many of that client, or of all. @throws what the look-up throws */
  async run<T>(
    { principal, clientAddress }: Asker,
    lookUp: () => Promise<T>,
  ): Promise<{ readonly found: T } | undefined> {
    const shares = principal === undefined ? this.#ofStrangers : this.#ofTenants;
    const owner = principal === undefined ? clientOf(clientAddress) : principal.tenant;
    if (shares.take(owner) !== undefined) return undefined;
    try {
      return { found: await lookUp() };
    } finally {
      shares.give(owner);
    }
  }
}

/** A question to another server: is this request for one of its sandboxes? */
export type Search = z.infer<typeof search>;

export const search = z.object({
  method: z.string(),
  path: z.string().startsWith("/"),
  listener: z.string(),
  preflight: z.string().optional(),
});

export const searchAnswer = z.object({ isHere: z.boolean() });

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
