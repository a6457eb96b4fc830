import { createToken } from "../../kernel/token.js";
import type { AddressLease } from "../contract/address-leases.js";
import type { SandboxId, SnapshotId, VolumeId } from "../contract/backend.js";
import type { EndReason, SandboxRecord } from "../model/live-sandbox.js";
import type { SandboxEvent } from "../model/sandbox-event.js";
import type { SnapshotRecord } from "../model/snapshots.js";
import type { VolumeRecord } from "../model/volumes.js";

/** A sandbox as the ledger holds it: what it is meant to be, whatever the backend got done so far. */
export interface LedgerEntry {
  readonly record: SandboxRecord;
  /** Why it is being killed; undefined too for one that is removed without a trace. */
  readonly endReason: EndReason | undefined;
  /** What will have happened to it once its backend has done what is written, oldest first. */
  readonly awaited: readonly SandboxEvent[];
}

/** Records that are written together with a sandbox: all of them or none. */
export interface LedgerNote {
  /** Why it is being killed. */
  readonly endReason?: EndReason | undefined;
  /** Has happened with this write: goes to the outbox. */
  readonly happened?: SandboxEvent | undefined;
  /** Happens when the backend has done what is written: kept until it is confirmed, withdrawn, or the sandbox goes. */
  readonly awaited?: SandboxEvent | undefined;
  /** The id of an awaited event that has not happened. */
  readonly withdrawn?: string | undefined;
}

/** Record of a sandbox that has ended. */
export interface EndedSandbox {
  readonly id: SandboxId;
  /** The tenant that it belonged to: to others it never was. */
  readonly owner: string;
  readonly backend: string;
  readonly template: string;
  readonly reason: EndReason;
  readonly startedAtMs: number;
  readonly endedAtMs: number;
  /** SHA-256 of its access token, in hexadecimal digits: who has the token may know. Undefined where it had none. */
  readonly accessTokenDigest?: string | undefined;
}

/** Holder of leased addresses. */
export interface Leaseholder {
  readonly network: string;
  readonly holder: SandboxId;
}

/** An address for a holder: the first of these that is free. */
export interface LeaseRequest extends Leaseholder {
  readonly addresses: readonly string[];
}

/**
 * The memory of a server that outlives it. What is to be is written here before a backend acts, so
 * that whatever a crash leaves half done can be finished or undone at the next start.
 *
 * Writes take effect in the order in which they were called, each whole or not at all; a write that
 * has resolved survives the end of this process. One that cannot be kept rejects: SandboxError unavailable.
 */
export interface Ledger {
  /**
   * Makes it ready; nothing else is called before.
   * @throws BootError that says what cannot be used and why.
   */
  open(): Promise<void>;
  /** Every sandbox that is not known to be gone. @throws BootError when that cannot be read. */
  entries(): Promise<readonly LedgerEntry[]>;
  /** Adds a sandbox or replaces what is known of it. */
  write(record: SandboxRecord, note?: LedgerNote): Promise<void>;
  /** Removes one that never served anybody. Unknown ids are fine. */
  remove(id: SandboxId): Promise<void>;
  /** Replaces a sandbox by the memory of it. The oldest memories go when there are too many. */
  end(ended: EndedSandbox, happened?: SandboxEvent): Promise<void>;
  /** Record of a sandbox that has ended. */
  findEnded(id: SandboxId): Promise<EndedSandbox | undefined>;
  /** Every snapshot that is not known to be gone. */
  snapshots(): Promise<readonly SnapshotRecord[]>;
  /** Adds a snapshot or replaces what is known of it. */
  writeSnapshot(record: SnapshotRecord, happened?: SandboxEvent): Promise<void>;
  /** Removes one. Unknown ids are fine. */
  removeSnapshot(id: SnapshotId): Promise<void>;
  /** Moves an awaited event to the outbox, as it is given here. One that is not awaited any more is left alone. */
  confirm(event: SandboxEvent): Promise<void>;
  /** Events that have not been taken away yet, in the order in which they happened. */
  outbox(limit: number): Promise<readonly SandboxEvent[]>;
  /** Takes events away. Unknown ids are fine. */
  clearOutbox(ids: readonly string[]): Promise<void>;
  /** Takes the oldest events away when there are more than `most`. @returns how many. */
  trimOutbox(most: number): Promise<number>;
  /** Every volume that is not known to be gone. */
  volumes(): Promise<readonly VolumeRecord[]>;
  /** Adds a volume or replaces what is known of it. */
  writeVolume(record: VolumeRecord): Promise<void>;
  /** Removes one. Unknown ids are fine. */
  removeVolume(id: VolumeId): Promise<void>;
  /** Every lease of a network. */
  leases(network: string): Promise<readonly AddressLease[]>;
  /** The addresses that a holder has leased. */
  leasedTo(who: Leaseholder): Promise<readonly string[]>;
  /** True when an address is leased, in any network. */
  isLeased(address: string): Promise<boolean>;
  /**
   * Leases the first of some addresses that nobody has, in any network. Where several servers share a ledger it is
   * the ledger that sees to it that only one of them gets it. @returns undefined when all of them are taken.
   */
  lease(wish: LeaseRequest): Promise<string | undefined>;
  /** Gives back all that a holder has leased. Unknown holders are fine. */
  endLeases(who: Leaseholder): Promise<void>;
  /** Rejects with the reason why it cannot be written now. */
  check(): Promise<void>;
  /** Safe to repeat, and without `open`. */
  close(): Promise<void>;
}

export const Ledger = createToken<Ledger>("ledger");
