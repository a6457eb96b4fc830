import { digestOf } from "@coppice/core";
import { z } from "zod";
import type { Entry } from "../store/fleet-store.js";

/** Keys of sandboxes, by id. */
export const SANDBOXES = "sandboxes/";

/** Prefix of the keys that tell the limits of a tenant's sandboxes, by id: quotas count them. */
export function countedOf(tenant: string): string {
  return `tenants/${digestOf(tenant)}/`;
}

const record = z.object({
  /** Name of the server that has it. */
  node: z.string(),
  tenant: z.string(),
  template: z.string(),
  backend: z.string(),
  startedAtMs: z.number(),
  /** SHA-256 of its access token, whose bearers may read of its end. */
  tokenDigest: z.string().optional(),
  /** When its server was found gone; it ended then. */
  lostAtMs: z.number().optional(),
});

/** A sandbox as the whole fleet knows it; its server knows more. */
export interface FleetSandbox extends z.infer<typeof record> {
  /** Of its last commit. */
  readonly revision: number;
}

/** Undefined for an entry that a newer version may have written. */
export function sandboxOf({ value, modRevision }: Entry): FleetSandbox | undefined {
  try {
    return { ...record.parse(JSON.parse(value)), revision: modRevision };
  } catch {
    return undefined;
  }
}

export function sandboxText(facts: z.infer<typeof record>): string {
  // Without the revision, which is the store's own.
  return JSON.stringify(record.parse(facts));
}
