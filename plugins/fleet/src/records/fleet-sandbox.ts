import { digestOf } from "@coppice/core";
import { z } from "zod";
import { type Entry, parsedText, time } from "../store/fleet-store.js";

export const SANDBOXES = "sandboxes/";

/** Prefix of the keys that tell the limits of a tenant's sandboxes, by id: quotas count them. */
export function countedOf(tenant: string): string {
  return `tenants/${digestOf(tenant)}/`;
}

/** Losses are told by commits that repeat 30 records; etcd refuses those of more than 1.5 MiB. */
const text = z.string().max(4096);

const record = z.object({
  node: text,
  tenant: text,
  template: text,
  backend: text,
  startedAtMs: time,
  /** SHA-256 of its access token, whose bearers may read of its end. */
  tokenDigest: text.optional(),
  /** When its server was found gone; it ended then. */
  lostAtMs: time.optional(),
  /** Lost to this server alone: another one took its place. */
  isMoved: z.boolean().optional(),
});

/** A sandbox as the whole fleet knows it; its server knows more. */
export interface FleetSandbox extends z.infer<typeof record> {
  readonly revision: number;
}

const MOST_SHARED = 10_000;
const texts = new Map<string, string>();

/** One string in place of its equals: a map of the fleet has the same few in every record. */
function shared(text: string): string {
  const known = texts.get(text);
  if (known !== undefined) return known;
  if (texts.size === MOST_SHARED) texts.clear();
  texts.set(text, text);
  return text;
}

/** Undefined for an entry that a newer version may have written. */
export function sandboxOf({ value, modRevision }: Entry): FleetSandbox | undefined {
  const parsed = parsedText(record, value);
  if (parsed === undefined) return undefined;
  const { node, tenant, template, backend, ...rest } = parsed;
  return {
    node: shared(node),
    tenant: shared(tenant),
    template: shared(template),
    backend: shared(backend),
    ...rest,
    revision: modRevision,
  };
}

export function sandboxText(facts: z.infer<typeof record>): string {
  // Without the revision, which is the store's own.
  return JSON.stringify(record.parse(facts));
}
