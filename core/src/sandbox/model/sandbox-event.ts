import { z } from "zod";
import type { Inferred } from "../../sqlite/table.js";
import { uuidOf } from "../../kernel/secrets.js";
import type { SandboxId } from "../contract/backend.js";
import { egressRules } from "./live-sandbox.js";
import { limits } from "./template-build.js";
import { createToken } from "../../kernel/token.js";

export type SandboxEventType = SandboxEvent["type"];

export type SandboxEventDetail = SandboxEvent["detail"];

/** An event in the life of a sandbox. It contains no secrets. */
export type SandboxEvent = Inferred<typeof sandboxEvent>;

export const sandboxEvent = z.object({
  /** Unique; the same for every delivery of one event. */
  id: z.string(),
  type: z.enum(["created", "updated", "paused", "resumed", "snapshotted", "exhausted", "killed"]),
  /** Milliseconds since the Unix epoch. */
  atMs: z.number(),
  sandboxId: z.string(),
  owner: z.string(),
  template: z.string(),
  /** A UUID of a build of the template; undefined for a template that its backend has by itself. */
  build: z.string().optional(),
  /** Snapshot that the sandbox started from; undefined when it started from its template. */
  snapshot: z.string().optional(),
  metadata: z.record(z.string(), z.string()),
  detail: z.object({
    /** An EndReason of `killed`, the trigger of `paused` and `resumed`, what `exhausted` lacked: `memory: limit 1024 MiB`. */
    reason: z.string().optional(),
    /** The end that `updated` set, in milliseconds since the Unix epoch. */
    endsAtMs: z.number().optional(),
    network: egressRules.extend({ allowInternetAccess: z.boolean() }).optional(),
    /** The complete limits after an `updated` event that changes limits, unchanged ones included. */
    limits: limits.optional(),
    /** The snapshot of a `snapshotted` event. */
    snapshot: z.string().optional(),
    /** Name of that snapshot. */
    name: z.string().optional(),
  }),
});

/** A UUID for the `killed` event of a sandbox, which ends once: the same one, whichever servers of a fleet tell it. */
export function endEventId(sandboxId: SandboxId): string {
  return uuidOf(`end of ${sandboxId}`);
}

/** Stores events: resolves, or returns, when they are safe. */
export type EventRecorder = (events: readonly SandboxEvent[]) => void | Promise<void>;

/** Delivery of the events of all sandboxes. */
export interface SandboxEvents {
  /**
   * Adds a recorder for every event, in order, once everything has started. Rejected events, and those that a crash
   * leaves, are delivered again with the same ids. Call it during set-up: without recorders no events are kept.
   */
  add(recorder: EventRecorder): void;
  /**
   * Tells the end of a sandbox that is in no ledger of this server: of another server that is gone. Resolves when all
   * recorders have it; who calls it repeats it until then.
   */
  tellEnd(end: Omit<SandboxEvent, "id" | "type">): Promise<void>;
  /** Resolves when all events until now are delivered, or failed for now. */
  caughtUp(): Promise<void>;
}

export const SandboxEvents = createToken<SandboxEvents>("sandbox-events");
