import type { Destination } from "./egress-policy.js";

/** A connection as pf remembers it. */
export interface PfState {
  /** Argument by which pfctl(8) kills it. */
  readonly id: string;
  readonly destination: Destination;
}

/** One state as pfctl(8) prints it, for what came in: `em0 tcp 192.0.2.1:80 <- 10.0.0.2:4096  …`. */
const INCOMING = /^\S+ \S+ ([\d.]+)(?::(\d+))?(?: \([^)]*\))? <- ([\d.]+)(?::\d+)?\s/;
/** And for what went out translated: `em0 tcp 192.0.2.9:61000 (10.0.0.2:4096) -> 192.0.2.1:80  …`. */
const TRANSLATED = /^\S+ \S+ \S+ \(([\d.]+)(?::\d+)?\) -> ([\d.]+)(?::(\d+))?\s/;
/** Below a state, where two -v ask for it. */
const ID = /^\s+id: ([0-9a-f]+) /;

/**
 * Where the connections lead that an address has begun.
 * @param listing what `pfctl -s states` has written.
 */
export function statesOf(listing: string, address: string): readonly Destination[] {
  return listing.split("\n").flatMap((line) => {
    const [, destination, port, source] = INCOMING.exec(line) ?? [];
    if (destination === undefined || source !== address) return [];
    return [{ address: destination, port: numberOf(port) }];
  });
}

/**
 * The connections that an address has begun, and that left the host with another.
 * @param listing what `pfctl -vv -s states` has written.
 */
export function translatedStatesOf(listing: string, address: string): readonly PfState[] {
  const states: PfState[] = [];
  let destination: Destination | undefined;
  for (const line of listing.split("\n")) {
    const [, id] = ID.exec(line) ?? [];
    if (id !== undefined && destination !== undefined) states.push({ id, destination });
    if (/^\s/.test(line)) continue;
    const [, source, reached, port] = TRANSLATED.exec(line) ?? [];
    const isItsOwn = reached !== undefined && source === address;
    destination = isItsOwn ? { address: reached, port: numberOf(port) } : undefined;
  }
  return states;
}

function numberOf(port: string | undefined): number | undefined {
  return port === undefined ? undefined : Number(port);
}
