import { type Clock, type Logger, SandboxError } from "@coppice/core";
import {
  type FleetStore,
  type KeyCheck,
  type Lease,
  StoreUnavailable,
  UnknownOutcome,
} from "../store/fleet-store.js";
import { Fence } from "./fence.js";
import type { FleetSecrets } from "../trust/fleet-secrets.js";
import { NODES, nodeOf, nodeText } from "./node-record.js";
import { REASONS } from "../reasons.js";

interface MembershipOptions {
  readonly store: FleetStore;
  readonly node: string;
  readonly identity: () => string;
  readonly run: string;
  /** Of the fleet: they prove its record. */
  readonly secrets: FleetSecrets;
  readonly address: () => string;
  readonly version: string;
  readonly memoryMiB: number;
  readonly leaseMs: number;
  /** Time that a stopped server has to come back. */
  readonly restartMs: number;
  readonly clock: Clock;
  readonly monotonic?: () => number;
  readonly log: Pick<Logger, "info" | "warn" | "error">;
}

interface Joined {
  readonly lease: Lease;
  readonly revision: number;
}

/** Renewals in the time of a lease. */
const RENEWALS = 3;
/**
 * While they fail: times that the members of a store are asked whether they have a majority, in the time between two
 * renewals, and the next one comes so much sooner.
 */
const LOOKS = 4;
/** Part of a lease that is not used. */
const MARGIN = 0.1;

/**
 * The membership of this server: a key with a lease, which it renews. Once it cannot, its fence closes before the
 * others see it gone.
 */
export class Membership {
  readonly #options: MembershipOptions;
  readonly fence: Fence;
  readonly #stopping = new AbortController();
  readonly #joinedListeners: (() => void | Promise<void>)[] = [];
  readonly #fencedListeners: (() => void)[] = [];
  #joined: Joined | undefined;
  #isFenced = true;
  /** True when the last attempt to renew the lease, or to join, has failed. */
  #isFailing = false;
  /** True when its record may be another one than this server has put. */
  #isDoubted = false;
  #cancelRenewal = (): void => {};
  #cancelFencing = (): void => {};
  #turn: Promise<void> = Promise.resolve();

  constructor(options: MembershipOptions) {
    const { clock, monotonic, leaseMs } = options;
    this.#options = options;
    this.fence = new Fence({ clock, marginMs: leaseMs * MARGIN, ...(monotonic && { monotonic }) });
  }

  /** Called after each joining, before this server acts as a member: what it holds is compared with the record. */
  onJoined(listener: () => void | Promise<void>): void {
    this.#joinedListeners.push(listener);
  }

  /** Called when this server may not act for the fleet any more, until it has joined again. */
  onFenced(listener: () => void): void {
    this.#fencedListeners.push(listener);
  }

  /**
   * Call when the record of this server has changed. The lease goes on where somebody else removes or replaces it, but the
   * others take this server for lost, and none of its commits is made.
   * @param revision undefined for one that is gone.
   */
  recordChanged(revision: number | undefined): void {
    if (this.#joined?.revision === revision) return;
    this.#isDoubted = true;
    if (this.#joined !== undefined) this.#schedule(0);
  }

  /** Part of every commit that a member makes: false once it is none any more. @throws SandboxError fleet_fenced */
  get check(): KeyCheck {
    const joined = this.#joined;
    if (joined === undefined || !this.fence.isOpen) throw fenced();
    return { key: NODES + this.#options.node, modRevision: joined.revision };
  }

  /** @throws SandboxError fleet_fenced while this server may not act for the fleet. */
  require(): void {
    if (this.#isFenced || !this.fence.isOpen) throw fenced();
  }

  /** Joins, and stays a member. @throws StoreUnavailable; Error when another server has the name. */
  async start(): Promise<void> {
    await this.#join();
    this.#schedule();
  }

  /**
   * Stops being a member.
   * @param isExpected true when it has sandboxes that its next start takes over: the others keep its place so long.
   */
  async stop(isExpected: boolean): Promise<void> {
    const { store, log, restartMs } = this.#options;
    this.#stopping.abort();
    this.#cancelRenewal();
    await this.#turn;
    const joined = this.#joined;
    try {
      if (joined !== undefined && isExpected) await this.#keepPlace(this.check, await store.grant(restartMs));
      if (joined !== undefined) await store.revoke(joined.lease);
    } catch (error) {
      log.warn({ err: error }, "the fleet was not told that this server stops");
    } finally {
      this.#joined = undefined;
      this.#close();
    }
  }

  async #keepPlace(check: KeyCheck, lease: Lease): Promise<void> {
    const { store, clock } = this.#options;
    await store.commit([check], [{ put: check.key, value: this.#text(clock.now()), lease }]);
  }

  async #join(): Promise<void> {
    const { store, node, leaseMs, log } = this.#options;
    const asked = this.fence.moment();
    const lease = await store.grant(leaseMs);
    try {
      const revision = await this.#putNode(lease);
      this.#joined = { lease, revision };
      // For the listeners, whose commits are checked; requests are served after them.
      this.fence.extend(asked, lease.ttlMs);
      for (const listener of this.#joinedListeners) await listener();
    } catch (error) {
      this.#joined = undefined;
      this.#close();
      await store.revoke(lease).catch(() => undefined);
      throw error;
    }
    this.#open();
    log.info({ node }, "this server is a member of the fleet");
  }

  async #putNode(lease: Lease): Promise<number> {
    const { store, node, identity, secrets } = this.#options;
    const key = NODES + node;
    const found = await store.get(key);
    if (found !== undefined && nodeOf(found, secrets)?.identity !== identity())
      throw new Error(`another server of the fleet has the name '${node}': set fleet.node`);
    const check = { key, modRevision: found?.modRevision ?? 0 };
    const revision = await store.commit([check], [{ put: key, value: this.#text(), lease }]);
    if (revision === undefined) throw new StoreUnavailable("its key has changed meanwhile");
    return revision;
  }

  #text(stoppedAtMs?: number): string {
    const { node, identity, run, address, version, memoryMiB, clock, secrets } = this.#options;
    const joinedAtMs = clock.now();
    const facts = { identity: identity(), run, address: address(), version, memoryMiB };
    return nodeText(node, { ...facts, joinedAtMs, stoppedAtMs }, secrets);
  }

  #schedule(delayMs = this.#options.leaseMs / RENEWALS): void {
    const { clock, leaseMs } = this.#options;
    if (this.#stopping.signal.aborted) return;
    this.#cancelRenewal = clock.after(delayMs, () => {
      const attempt = this.#turn.then(() => this.#attempt());
      this.#turn = attempt.then((isDone) => {
        this.#isFailing = !isDone;
        // What is left of the lease after an attempt that had no answer is too short for the usual pause.
        this.#schedule(leaseMs / RENEWALS / (isDone ? 1 : LOOKS));
      });
    });
  }

  /** Renews the lease, or joins. @returns false where it failed, at the latest after the time between two renewals */
  async #attempt(): Promise<boolean> {
    const { leaseMs, clock, log } = this.#options;
    const { signal } = this.#stopping;
    const late = new AbortController();
    const cancelLimit = clock.after(leaseMs / RENEWALS, () => late.abort());
    const ended = AbortSignal.any([signal, late.signal]);
    const looks = new AbortController();
    const looking = this.#isFailing ? this.#goOn(AbortSignal.any([ended, looks.signal])) : undefined;
    try {
      await this.#renew(ended);
      return true;
    } catch (error) {
      if (signal.aborted || this.#isFailing) return false;
      const isExpected =
        late.signal.aborted || error instanceof StoreUnavailable || error instanceof UnknownOutcome;
      log[isExpected ? "warn" : "error"](
        { err: error },
        "this server could not renew its lease, and tries again",
      );
      return false;
    } finally {
      cancelLimit();
      looks.abort();
      await looking;
    }
  }

  async #renew(signal: AbortSignal): Promise<void> {
    const { store, log } = this.#options;
    const joined = this.#joined;
    if (joined === undefined) return this.#join();
    const asked = this.fence.moment();
    if ((await store.renew(joined.lease, signal)) && (await this.#hasRecord(joined))) {
      // Also one that was closed meanwhile: the lease never ended, so nobody has taken anything from this server.
      this.fence.extend(asked, joined.lease.ttlMs);
      return this.#open();
    }
    log.warn("the lease of this server has ended, or its record is gone; it joins the fleet again");
    this.#joined = undefined;
    this.#close();
    await this.#join();
  }

  async #hasRecord({ revision }: Joined): Promise<boolean> {
    if (!this.#isDoubted) return true;
    this.#isDoubted = false;
    try {
      const found = await this.#options.store.get(NODES + this.#options.node);
      return found?.modRevision === revision;
    } catch (error) {
      this.#isDoubted = true;
      throw error;
    }
  }

  /** Keeps its place where nobody can take it: the store has no majority, which members see after a second or two. */
  async #goOn(signal: AbortSignal): Promise<void> {
    const { store, clock, leaseMs } = this.#options;
    const joined = this.#joined;
    if (joined === undefined) return;
    while (!signal.aborted) {
      const asked = this.fence.moment();
      const isSafe = await store.lacksMajority(signal);
      // Once the fence has closed, the last majority may have ended the lease.
      if (!this.fence.isOpen || this.#joined !== joined) return;
      if (isSafe) {
        this.fence.extend(asked, joined.lease.ttlMs);
        this.#open();
      }
      await new Promise<void>((resolve) => {
        const cancel = clock.after(leaseMs / RENEWALS / LOOKS, resolve);
        signal.addEventListener("abort", () => (cancel(), resolve()), { once: true });
      });
    }
  }

  /** Until the fence closes by itself. */
  #open(): void {
    this.#isFenced = false;
    this.#cancelFencing();
    this.#cancelFencing = this.#options.clock.after(this.fence.leftMs, () => {
      if (this.fence.isOpen) this.#open();
      else this.#close();
    });
  }

  #close(): void {
    this.#cancelFencing();
    this.fence.close();
    if (this.#isFenced) return;
    this.#isFenced = true;
    // A server that stops leaves the fleet by intention.
    if (!this.#stopping.signal.aborted)
      this.#options.log.warn(
        "this server has lost its place in the fleet: it answers 503 until it has joined again",
      );
    for (const listener of this.#fencedListeners) listener();
  }
}

function fenced(): SandboxError {
  return new SandboxError(
    REASONS.fleet_fenced,
    "this server has lost its place in the fleet for now, please retry",
  );
}
