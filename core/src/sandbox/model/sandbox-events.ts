import { createToken } from "../../kernel/token.js";
import type { SandboxEvent } from "./sandbox-event.js";

/** Keeps events somewhere: resolves, or returns, when they are safe there. */
export type EventRecorder = (events: readonly SandboxEvent[]) => void | Promise<void>;

/** Delivery of the events of all sandboxes. */
export interface SandboxEvents {
  /**
   * Hands over every event of what really happened, in that order, once everything has started. What a recorder
   * rejects, and what a crash leaves, comes again, with the same ids. To be called during set-up: as long as
   * nobody has, no events are kept.
   */
  add(recorder: EventRecorder): void;
  /** Resolves when what has happened until now is handed over, or could not be for now. */
  caughtUp(): Promise<void>;
}

export const SandboxEvents = createToken<SandboxEvents>("sandbox-events");
