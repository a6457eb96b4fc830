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

/** A record for several servers, where a plugin has one. */
export interface SharedRecords {
  /** Sets the record, once. */
  use(record: SharedRecord): void;
}

export const SharedRecords = createToken<SharedRecords>("shared-records");

/** The record of this server, if it has one. */
export class UsedSharedRecord implements SharedRecords, SharedRecord {
  #record: SharedRecord | undefined;

  use(record: SharedRecord): void {
    if (this.#record !== undefined)
      throw new Error("another plugin records the sandboxes of several servers");
    this.#record = record;
  }

  async add(sandbox: SandboxRecord, reservation: Reservation): Promise<void> {
    await this.#record?.add(sandbox, reservation);
  }

  async raise(sandbox: SandboxRecord, reservation: Reservation): Promise<void> {
    await this.#record?.raise(sandbox, reservation);
  }

  async lower(sandbox: SandboxRecord): Promise<void> {
    await this.#record?.lower(sandbox);
  }

  async remove(id: SandboxId): Promise<void> {
    await this.#record?.remove(id);
  }
}
