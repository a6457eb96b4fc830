import { setTimeout as pause } from "node:timers/promises";
import type { FaultedFleet } from "../world/faulted-fleet.js";
import type { FleetNode } from "../world/fleet-node.js";
import { Client } from "./client.js";
import type { Load } from "./load.js";

const POLL_MS = 100;

/** Watches the fleet's record for lost sandboxes: from then on nobody may serve them. */
export class LossWatch {
  readonly #fleet: FaultedFleet;
  readonly #load: Load;
  /** Lost ones that the load was told of. */
  readonly #seen = new Set<string>();
  #isStopped = false;
  readonly #watching: Promise<void>;

  constructor(fleet: FaultedFleet, load: Load) {
    this.#fleet = fleet;
    this.#load = load;
    this.#watching = this.#watch();
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    await this.#watching;
  }

  /**
   * Resolves when the other servers tell the clients of all sandboxes of a server that they are lost.
   * @returns the ids of those that clients know
   */
  async untilTold(victim: FleetNode, timeoutMs: number): Promise<readonly string[]> {
    const deadline = performance.now() + timeoutMs;
    const others = this.#fleet.nodes.filter((node) => node !== victim).map(({ url }) => new Client(url));
    const known = await this.#fleet.records();
    const ids = known.filter(({ node, isLost }) => node === victim.name && !isLost).map(({ id }) => id);
    const left = new Set(ids);
    while (left.size > 0 && performance.now() < deadline) {
      for (const id of left) {
        const told = await Promise.all(others.map((client) => client.look(id)));
        if (told.every(({ is }) => is === "gone")) left.delete(id);
      }
      await pause(POLL_MS);
    }
    return ids.filter((id) => this.#load.knows(id));
  }

  async #watch(): Promise<void> {
    while (!this.#isStopped) {
      const startMs = performance.now();
      const records = await this.#fleet.records().catch(() => []);
      for (const { id, isLost } of records)
        if (isLost && this.#load.knows(id) && !this.#seen.has(id)) {
          this.#seen.add(id);
          this.#load.sawLost(id, "the record", startMs);
        }
      await pause(POLL_MS);
    }
  }
}
