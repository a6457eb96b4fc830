import type { LiveSandbox } from "../../sandbox/model/live-sandbox.js";
import { EdgeRefusal } from "../messages/edge-refusal.js";
import type { Target } from "../surfaces/surface-request.js";

/** Counts one more exchange with the ports of a sandbox, until the returned function is called. */
export type ExchangeLimit = (target: Target) => () => void;

/**
 * Limits the exchanges under way with the ports of each sandbox, so that one cannot take the whole server.
 * @throws HttpError 429 with the text of the E2B edge.
 */
export function exchangeLimit(most: number): ExchangeLimit {
  const underWay = new WeakMap<LiveSandbox, number>();
  return ({ sandbox }) => {
    const count = underWay.get(sandbox) ?? 0;
    if (count >= most) {
      throw new EdgeRefusal(429, {
        reason: "exchange_limit_reached",
        sandboxId: sandbox.record.id,
        message: `The sandbox has too many concurrent incoming connections (limit: ${most})`,
        title: "Too Many Connections",
      });
    }
    underWay.set(sandbox, count + 1);
    return () => void underWay.set(sandbox, (underWay.get(sandbox) ?? 1) - 1);
  };
}
