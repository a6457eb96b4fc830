import type { Destination } from "./egress-policy.js";

export interface PfState {
  /** Argument with which pfctl(8) kills it. */
  readonly id: string;
  readonly destination: Destination;
}

/** An incoming state as pfctl(8) prints it: `em0 tcp 192.0.2.1:80 <- 10.0.0.2:4096  …`. */
const INCOMING = /^\S+ \S+ ([\d.]+)(?::(\d+))?(?: \([^)]*\))? <- ([\d.]+)(?::\d+)?\s/;
/** A translated outgoing state: `em0 tcp 192.0.2.9:61000 (10.0.0.2:4096) -> 192.0.2.1:80  …`. */
const TRANSLATED = /^\S+ \S+ \S+ \(([\d.]+)(?::\d+)?\) -> ([\d.]+)(?::(\d+))?\s/;
/** Printed below each state with `-vv`. */
const ID = /^\s+id: ([0-9a-f]+) /;

/**
 * Destinations of the connections that an address opened.
 * @param listing output of `pfctl -s states`.
 */
export function statesOf(listing: string, address: string): readonly Destination[] {
  return listing.split("\n").flatMap((line) => {
    const [, destination, port, source] = INCOMING.exec(line) ?? [];
    if (destination === undefined || source !== address) return [];
    return [{ address: destination, port: numberOf(port) }];
  });
}

/**
 * Connections that an address opened and that left the host translated.
 * @param listing output of `pfctl -vv -s states`.
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
