import type { LiveSandbox } from "../../sandbox/model/live-sandbox.js";
import { EdgeRefusal } from "../messages/edge-refusal.js";
import type { Target } from "../surfaces/surface-request.js";

/** Limits the exchanges under way with the ports of each sandbox, so that one cannot take the whole server. */
export class ExchangeLimit {
  readonly #most: number;
  readonly #underWay = new WeakMap<LiveSandbox, number>();

  /** @param most requests and WebSockets to the ports of one sandbox at a time. */
  constructor(most: number) {
    this.#most = most;
  }

  /**
   * Counts one more; call the returned function once when it is over.
   * @throws HttpError 429 with the text of the E2B edge.
   */
  enter({ sandbox }: Target): () => void {
    const count = this.#underWay.get(sandbox) ?? 0;
    if (count >= this.#most) {
      throw new EdgeRefusal(429, {
        reason: "exchange_limit_reached",
        sandboxId: sandbox.record.id,
        message: `The sandbox has too many concurrent incoming connections (limit: ${this.#most})`,
      });
    }
    this.#underWay.set(sandbox, count + 1);
    return () => void this.#underWay.set(sandbox, (this.#underWay.get(sandbox) ?? 1) - 1);
  }
}
