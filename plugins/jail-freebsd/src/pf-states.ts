import type { Destination } from "./anchor-rules.js";

/** One state as pfctl(8) prints it, for what came in: `em0 tcp 192.0.2.1:80 <- 10.0.0.2:4096  …`. */
const INCOMING = /^\S+ \S+ ([\d.]+)(?::(\d+))?(?: \([^)]*\))? <- ([\d.]+)(?::\d+)?\s/;

/**
 * Where the connections lead that an address has begun.
 * @param listing what `pfctl -s states` has written.
 */
export function statesOf(listing: string, address: string): readonly Destination[] {
  return listing.split("\n").flatMap((line) => {
    const [, destination, port, source] = INCOMING.exec(line) ?? [];
    if (destination === undefined || source !== address) return [];
    return [{ address: destination, port: port === undefined ? undefined : Number(port) }];
  });
}
