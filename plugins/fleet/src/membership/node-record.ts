import { z } from "zod";
import type { Entry } from "../store/fleet-store.js";
import { parsedText } from "../store/parsed-text.js";

/** Keys of members; each has the lease of its server. */
export const NODES = "nodes/";

const record = z.object({
  /** Of its data directory: tells a restart of a server from another one that was given its name. */
  identity: z.string(),
  /** Where the others reach it. */
  address: z.string(),
  version: z.string(),
  joinedAtMs: z.number(),
  /** Of its machine. An older version does not tell it: it is taken for one like the reader's. */
  memoryMiB: z.int().positive().optional(),
  /** Of one that was stopped and is expected back: it serves nothing meanwhile. */
  stoppedAtMs: z.number().optional(),
});

/** A member of the fleet, as the others know it. */
export interface NodeRecord extends z.infer<typeof record> {
  /** Of its joining: what it commits is checked against it, so that a former member changes nothing. */
  readonly revision: number;
}

/** Undefined for an entry that a newer version may have written. */
export function nodeOf({ value, modRevision }: Entry): NodeRecord | undefined {
  const node = parsedText(record, value);
  return node && { ...node, revision: modRevision };
}

export function nodeText(node: z.infer<typeof record>): string {
  return JSON.stringify(node);
}
