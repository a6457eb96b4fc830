import { z } from "zod";
import { type Entry, type FleetStore, parsedText, time } from "../store/fleet-store.js";
import type { FleetSecrets } from "../trust/fleet-secrets.js";
import type { KeyView } from "../store/key-view.js";

/** Keys of members; each has the lease of its server. */
export const NODES = "nodes/";

const record = z.object({
  /** Of its data directory: tells a restart of a server from another one that was given its name. */
  identity: z.string(),
  /** Of its process: requests for an earlier one are refused. */
  run: z.string().default(""),
  address: z.string(),
  version: z.string(),
  joinedAtMs: time,
  /** Of its machine. An older version does not tell it: it is taken for one like the reader's. */
  memoryMiB: z.int().positive().optional(),
  /** Of one that was stopped and is expected back: it serves nothing meanwhile. */
  stoppedAtMs: time.optional(),
});

const proven = z.looseObject({ proofs: z.record(z.string(), z.string()).default({}) });

/** A member of the fleet, as the others know it. */
export interface NodeRecord extends z.infer<typeof record> {
  /** Of its joining: what it commits is checked against it, so that a former member changes nothing. */
  readonly revision: number;
  /**
   * Name of the secret that proves it; undefined where somebody else may have written it: its server keeps its name and its
   * sandboxes, but nothing is sent to its address.
   */
  readonly secret: string | undefined;
}

/** Undefined for an entry that a newer version may have written. */
export function nodeOf({ key, value, modRevision }: Entry, secrets: FleetSecrets): NodeRecord | undefined {
  const node = parsedText(record, value);
  const whole = parsedText(proven, value);
  if (node === undefined || whole === undefined) return undefined;
  // Also what a newer version adds is proven.
  const { proofs, ...facts } = whole;
  const secret = secrets.proverOf(["record", key.slice(NODES.length), JSON.stringify(facts)], proofs);
  return { ...node, revision: modRevision, secret };
}

export function nodeText(name: string, node: z.input<typeof record>, secrets: FleetSecrets): string {
  const proofs = secrets.proofsOf(["record", name, JSON.stringify(node)]);
  return JSON.stringify({ ...node, proofs });
}

/** Keys of servers that get no new sandboxes, by name. */
export const CORDONS = "cordons/";

export async function setCordon(store: FleetStore, node: string, isCordoned: boolean): Promise<void> {
  const key = CORDONS + node;
  await store.commit([], [isCordoned ? { put: key, value: "true" } : { delete: key }]);
}

interface FleetServers {
  readonly node: string;
  readonly nodes: Pick<KeyView<NodeRecord>, "entries">;
  readonly cordons: Pick<KeyView<true>, "get">;
}

/** The other servers that get new sandboxes, volumes and templates. */
export function openServers({
  node,
  nodes,
  cordons,
}: FleetServers): readonly (readonly [string, NodeRecord])[] {
  return [...nodes.entries()].filter(
    ([name, { secret, stoppedAtMs }]) =>
      name !== node && secret !== undefined && stoppedAtMs === undefined && cordons.get(name) === undefined,
  );
}
