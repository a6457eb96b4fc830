import { createToken } from "../../kernel/token.js";
import type { SandboxEvent } from "./sandbox-event.js";

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
   * Tells an event that is in no ledger of this server: of another server that is gone. Resolves when all recorders have
   * it; who calls it repeats it until then, with the same ids.
   */
  tell(events: readonly SandboxEvent[]): Promise<void>;
  /** Resolves when all events until now are delivered, or failed for now. */
  caughtUp(): Promise<void>;
}

export const SandboxEvents = createToken<SandboxEvents>("sandbox-events");
