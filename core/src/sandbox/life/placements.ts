import { createToken } from "../../kernel/token.js";
import type { CreateSandbox } from "./sandboxes.js";

/**
 * Chooses the server of a new sandbox, where there are several. @returns its name; undefined for this one.
 * @throws SandboxError when none can have it.
 */
export type Placement = (request: CreateSandbox, signal?: AbortSignal) => Promise<string | undefined>;

/** Choice among several servers, for the sandboxes that clients ask for. */
export interface Placements {
  /** Sets the choice, once. */
  use(placement: Placement): void;
}

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

export class ChosenPlacement implements Placements {
  #placement: Placement | undefined;

  use(placement: Placement): void {
    if (this.#placement !== undefined) throw new Error("another plugin chooses the servers of sandboxes");
    this.#placement = placement;
  }

  /** Returns when this server is to create it. @throws CreatedElsewhere, or what the choice throws. */
  async require(request: CreateSandbox, signal?: AbortSignal): Promise<void> {
    const server = await this.#placement?.(request, signal);
    if (server !== undefined) throw new CreatedElsewhere(server);
  }
}
