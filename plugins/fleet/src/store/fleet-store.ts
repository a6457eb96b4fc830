import { randomInt } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { parseJson, SandboxError } from "@coppice/core";
import { z } from "zod";
import { REASONS, unavailable } from "../reasons.js";

/** A key of the store. Every commit has a revision of its own, greater than those before it. */
export interface Entry {
  readonly key: string;
  readonly value: string;
  /** Revision of the commit that made the key; another one after the key was deleted and put again. */
  readonly createRevision: number;
  /** Revision of the last commit that put it. */
  readonly modRevision: number;
}

/** All keys with a prefix, in their order, as of one revision. */
export interface Listing {
  readonly entries: readonly Entry[];
  readonly revision: number;
}

/** What has to be true of a key: 0 is the revision of a missing one. */
export interface KeyCheck {
  readonly key: string;
  readonly createRevision?: number;
  readonly modRevision?: number;
}

/** What has to be true for a commit. */
export type Check =
  | KeyCheck
  /** No key with the prefix was put after that revision; some may have been deleted. */
  | { readonly prefix: string; readonly notPutAfter: number };

export type Change =
  | { readonly put: string; readonly value: string; readonly lease?: Lease | undefined }
  | { readonly delete: string };

/** Keys of a lease are deleted when it is revoked, or was not renewed for so long. */
export interface Lease {
  readonly id: string;
  readonly ttlMs: number;
}

export type Update =
  | {
      readonly kind: "changes";
      /** The last revision that this and the updates before it cover. */
      readonly revision: number;
      /** In their order. No entry: the key was deleted. */
      readonly changes: readonly { readonly key: string; readonly entry: Entry | undefined }[];
    }
  /** What happened since the revision is not kept any more: the keys have to be listed again. */
  | { readonly kind: "compacted" };

/** A commit that may have taken place, or may not: what it was about has to be read again. */
export class UnknownOutcome extends SandboxError {
  constructor(cause: unknown) {
    super(REASONS.fleet_unavailable, "the fleet's store did not say whether it did something, please retry", {
      cause,
    });
  }
}

/** The store cannot be reached, or has no majority; nothing has changed. */
export class StoreUnavailable extends SandboxError {
  constructor(cause?: unknown) {
    super(REASONS.fleet_unavailable, "the fleet's store cannot be reached, please retry", { cause });
  }
}

/** A member of the store's own cluster, as it tells of itself. */
export interface StoreMember {
  readonly url: string;
  /** Undefined for one that does not answer: `problem` says why. */
  readonly version: string | undefined;
  readonly isReady: boolean;
  readonly problem: string | undefined;
}

/** The state that the servers of a fleet share. All methods but `watch` throw StoreUnavailable. */
export interface FleetStore {
  get(key: string): Promise<Entry | undefined>;
  list(prefix: string): Promise<Listing>;
  /**
   * Calls back for each entry that `list` would have, and keeps none of them.
   * @param afterRevision leaves out what was not put after it.
   * @returns the revision
   */
  each(prefix: string, visit: (entry: Entry) => void, afterRevision?: number): Promise<number>;
  /**
   * Makes all changes, at most 100 and one for each key, if all checks are true.
   * @returns their revision; undefined when a check is false, or a lease has ended. @throws UnknownOutcome
   */
  commit(checks: readonly Check[], changes: readonly Change[]): Promise<number | undefined>;
  /**
   * Changes of the keys with a prefix after a revision, in their order. Ends with `compacted`, or when the signal
   * aborts; goes on after a loss of the connection.
   */
  watch(prefix: string, afterRevision: number, signal: AbortSignal): AsyncIterable<Update>;
  /** @param ttlMs whole seconds. */
  grant(ttlMs: number): Promise<Lease>;
  /** @returns false when the lease has ended. */
  renew(lease: Lease, signal?: AbortSignal): Promise<boolean>;
  revoke(lease: Lease): Promise<void>;
  /**
   * True where it is known that no majority of the store was there after this was called: no lease can have ended, and
   * when there is one again, leases begin anew. Never throws.
   */
  lacksMajority(signal: AbortSignal): Promise<boolean>;
  /** None for a store that is a file. Never throws. */
  members(signal: AbortSignal): Promise<readonly StoreMember[]>;
  close(): Promise<void>;
}

/** Commits that other servers may forestall: each of them has made something for the same tenant then. */
const ATTEMPTS = 100;
const MAX_PAUSE_MS = 100;

/** Repeats what reads and commits until no other server has come between. @throws SandboxError, or as `attempt` */
export async function untilCommitted(attempt: () => Promise<boolean>): Promise<void> {
  for (let count = 1; count <= ATTEMPTS; count += 1) {
    if (await attempt()) return;
    // Unequal times: servers that were in each other's way would be so again.
    await pause(randomInt(Math.min(2 ** count, MAX_PAUSE_MS)));
  }
  throw contradicted();
}

export function contradicted(): SandboxError {
  return unavailable("other servers of the fleet have changed the record meanwhile, please retry");
}

/** The first key after all those with a prefix, which ends with an ASCII character. */
export function afterPrefix(prefix: string): string {
  return prefix.slice(0, -1) + String.fromCharCode(prefix.charCodeAt(prefix.length - 1) + 1);
}

/** Values in a record's own JSON; those of this version have twenty. */
const MOST_VALUES = 256;

/**
 * What a text of JSON says; undefined for one that is no JSON, or has another form: a newer version may have written it, or
 * somebody who is no server of the fleet.
 */
export function parsedText<T>(schema: z.ZodType<T>, text: string): T | undefined {
  try {
    return schema.parse(parseJson(Buffer.from(text), MOST_VALUES));
  } catch {
    return undefined;
  }
}

/** Milliseconds since the Unix epoch, of which JavaScript can make a date. */
export const time = z.number().min(-8.64e15).max(8.64e15);
