import type { Slot } from "../../kernel/slot.js";
import { createToken } from "../../kernel/token.js";
import type { SandboxId } from "../contract/backend.js";
import type { CountedSandbox } from "./admissions.js";
import type { SandboxRecord } from "./live-sandbox.js";

export interface Reservation {
  /**
   * Refuses by throwing when the owner may not have the sandbox beside its others, on all servers; may be called several
   * times. Undefined when nothing of the owner is counted.
   */
  readonly admit: ((others: readonly CountedSandbox[]) => void) | undefined;
  readonly signal: AbortSignal;
}

/** The record that several servers have of their sandboxes. */
export interface SharedRecord {
  /** Adds a sandbox before it is made. @throws SandboxError, or what `admit` throws; nothing is recorded then. */
  add(sandbox: SandboxRecord, reservation: Reservation): Promise<void>;
  /** Gives a recorded sandbox its new limits before it gets them. @throws as `add`; the old limits are recorded then. */
  raise(sandbox: SandboxRecord, reservation: Reservation): Promise<void>;
  /** Records lower limits. Never rejects, and resolves soon. */
  lower(sandbox: SandboxRecord): Promise<void>;
  /** Removes a sandbox that ends. Never rejects, and resolves soon; for an unknown one at once. */
  remove(id: SandboxId): Promise<void>;
}

/** The record for several servers, where a plugin has one. */
export type SharedRecords = Slot<SharedRecord>;

export const SharedRecords = createToken<SharedRecords>("shared-records");
