import type { Slot } from "../../kernel/slot.js";
import { createToken } from "../../kernel/token.js";
import type { CreateSandbox } from "./sandboxes.js";

/**
 * Chooses the server of a new sandbox, where there are several. @returns its name; undefined for this one.
 * @throws SandboxError when none can have it.
 */
export type Placement = (request: CreateSandbox, signal?: AbortSignal) => Promise<string | undefined>;

/** Choice among several servers, for the sandboxes that clients ask for. */
export type Placements = Slot<Placement>;

export const Placements = createToken<Placements>("placements");

/** A creation that another server is to do: its request is passed on. */
export class CreatedElsewhere extends Error {
  override readonly name = "CreatedElsewhere";
  readonly server: string;

  constructor(server: string) {
    super(`server '${server}' creates it`);
    this.server = server;
  }
}
