import { z } from "zod";
import type { Entry } from "../fleet-store.js";

// The gateway leaves out what is zero, empty or false.
const number = z.coerce.number().default(0);

const header = z.object({ revision: number, member_id: z.string().default("0"), raft_term: number });

const keyValue = z.object({
  key: z.string(),
  value: z.string().default(""),
  create_revision: number,
  mod_revision: number,
});

export const rangeAnswer = z.object({
  header,
  kvs: z.array(keyValue).default([]),
  more: z.boolean().default(false),
});
export const commitAnswer = z.object({ header, succeeded: z.boolean().default(false) });
export const grantAnswer = z.object({ ID: z.string(), TTL: number });
export const renewAnswer = z.object({ result: z.object({ header, TTL: number }) });
export const anyAnswer = z.object({});
export const statusAnswer = z.object({ version: z.string(), leader: z.string().default("0") });
export const membersAnswer = z.object({ members: z.array(z.object({})) });

export const watchMessage = z.object({
  header,
  created: z.boolean().default(false),
  canceled: z.boolean().default(false),
  compact_revision: number,
  /** True when further events of the same commits follow. */
  fragment: z.boolean().default(false),
  cancel_reason: z.string().default(""),
  events: z.array(z.object({ type: z.enum(["PUT", "DELETE"]).default("PUT"), kv: keyValue })).default([]),
});

export function encode(text: string): string {
  return Buffer.from(text).toString("base64");
}

/** @param own the length of the prefix that all keys of a fleet have. */
export function keyOf({ key }: z.infer<typeof keyValue>, own: number): string {
  return Buffer.from(key, "base64").toString().slice(own);
}

/** @param own as of `keyOf` */
export function entryOf(found: z.infer<typeof keyValue>, own: number): Entry {
  return {
    key: keyOf(found, own),
    value: Buffer.from(found.value, "base64").toString(),
    createRevision: found.create_revision,
    modRevision: found.mod_revision,
  };
}
