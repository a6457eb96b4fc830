import { z } from "zod";
import type { Inferred } from "../../sqlite/table.js";
import { createToken } from "../../kernel/token.js";
import type { AddressLease } from "../contract/address-leases.js";
import type { SandboxId, SnapshotId, VolumeId } from "../contract/backend.js";
import { END_REASONS, type EndReason } from "../model/describe-end.js";
import type { SandboxRecord } from "../model/live-sandbox.js";
import type { SandboxEvent } from "../model/sandbox-event.js";
import type { SnapshotRecord } from "../model/snapshots.js";
import type { VolumeRecord } from "../model/volumes.js";

/** A sandbox in the ledger: its intended state, whether or not the backend has reached it. */
export interface LedgerEntry {
  readonly record: SandboxRecord;
  /** Reason for the kill under way; also undefined for a removal that leaves no record. */
  readonly endReason: EndReason | undefined;
  /** Events that happen once the backend has reached the written state, oldest first. */
  readonly awaited: readonly SandboxEvent[];
}

/** Records that are written together with a sandbox: all of them or none. */
export interface LedgerNote {
  readonly endReason?: EndReason | undefined;
  /** Happened with this write: goes to the outbox. */
  readonly happened?: SandboxEvent | undefined;
  /**
   * Happens when the backend has done the written change: kept until it is confirmed, withdrawn, or the sandbox goes.
   */
  readonly awaited?: SandboxEvent | undefined;
  /** The id of an awaited event that will not happen. */
  readonly withdrawn?: string | undefined;
}

/** The end of a sandbox. For other tenants than its owner it never existed. */
export type EndedSandbox = Inferred<typeof endedSandbox>;

export const endReason = z.enum(Object.keys(END_REASONS) as EndReason[]);

export const endedSandbox = z.object({
  id: z.string(),
  owner: z.string(),
  backend: z.string(),
  template: z.string(),
  reason: endReason,
  startedAtMs: z.number(),
  endedAtMs: z.number(),
  /**
   * SHA-256 of its access token, in hexadecimal digits: bearers of the token may read the record. Undefined without a
   * token.
   */
  accessTokenDigest: z.string().optional(),
});

export interface Leaseholder {
  readonly network: string;
  readonly holder: SandboxId;
}

export interface LeaseRequest extends Leaseholder {
  readonly addresses: readonly string[];
}

/**
 * The server's durable memory. Intentions are written here before a backend acts, so that the next start can finish or
 * undo whatever a crash interrupts.
 *
 * Writes take effect in call order, each whole or not at all; a write that has resolved survives the end of this
 * process. A failed write rejects: SandboxError unavailable.
 */
export interface Ledger {
  /** Opens it, before any other call. @throws BootError with the reason why it cannot be used. */
  open(): Promise<void>;
  /** Every sandbox that is not known to be gone. @throws BootError when it cannot be read. */
  entries(): Promise<readonly LedgerEntry[]>;
  /** Adds or replaces the entry of a sandbox. */
  write(record: SandboxRecord, note?: LedgerNote): Promise<void>;
  /** Removes a sandbox that never served a client. Unknown ids are fine. */
  remove(id: SandboxId): Promise<void>;
  /** Replaces a sandbox by the record of its end. The oldest of too many such records are dropped. */
  end(ended: EndedSandbox, happened?: SandboxEvent): Promise<void>;
  findEnded(id: SandboxId): Promise<EndedSandbox | undefined>;
  /** Every snapshot that is not known to be gone. */
  snapshots(): Promise<readonly SnapshotRecord[]>;
  writeSnapshot(record: SnapshotRecord, happened?: SandboxEvent): Promise<void>;
  /** Removes one. Unknown ids are fine. */
  removeSnapshot(id: SnapshotId): Promise<void>;
  /** Moves an awaited event to the outbox, with the given content. Ignores one that is no longer awaited. */
  confirm(event: SandboxEvent): Promise<void>;
  /** Puts an event to the outbox that comes with no change of its sandbox. */
  tell(event: SandboxEvent): Promise<void>;
  /** Undelivered events, in the order in which they happened. */
  outbox(limit: number): Promise<readonly SandboxEvent[]>;
  /** Removes delivered events. Unknown ids are fine. */
  clearOutbox(ids: readonly string[]): Promise<void>;
  /** Removes the oldest events when there are more than `most`. @returns their number. */
  trimOutbox(most: number): Promise<number>;
  /** Every volume that is not known to be gone. */
  volumes(): Promise<readonly VolumeRecord[]>;
  writeVolume(record: VolumeRecord): Promise<void>;
  /** Removes one. Unknown ids are fine. */
  removeVolume(id: VolumeId): Promise<void>;
  leases(network: string): Promise<readonly AddressLease[]>;
  leasedTo(who: Leaseholder): Promise<readonly string[]>;
  /** True when an address is leased, in any network. */
  isLeased(address: string): Promise<boolean>;
  /**
   * Leases, atomically, the first of some addresses that is free in every network, also between servers that share a
   * ledger.
   * @returns undefined when all are taken.
   */
  lease(request: LeaseRequest): Promise<string | undefined>;
  /** Ends all leases of a holder. Unknown holders are fine. */
  endLeases(who: Leaseholder): Promise<void>;
  /** Rejects with the reason why it cannot be written now. */
  check(): Promise<void>;
  /** Safe to repeat, and without `open`. */
  close(): Promise<void>;
}

export const Ledger = createToken<Ledger>("ledger");
