import { setMaxListeners } from "node:events";
import { SandboxError } from "../../kernel/errors.js";
import type { Sandbox, Stats } from "../contract/backend.js";
import { type EndReason, factsOfEnd } from "../model/describe-end.js";
import type { LiveSandbox, SandboxRecord } from "../model/live-sandbox.js";
import type { AdoptedProcess } from "../contract/process.js";
import { SandboxUse } from "../model/sandbox-use.js";
import { Semaphore } from "../../bounds/semaphore.js";

export interface Change {
  readonly kind: "pausing" | "resuming" | "snapshotting";
  readonly done: Promise<unknown>;
}

/**
 * A sandbox of the registry, from its request until nothing of it is left: creating, then running and paused in turn,
 * then killing, which is final.
 */
export class HeldSandbox implements LiveSandbox {
  /** Aborted when the sandbox is no longer wanted while it is being created. */
  readonly making = new AbortController();
  /** Settles when a creation that was given up is undone. */
  readonly undone = Promise.withResolvers<void>();
  /** Serializes changes of its network policy and its limits. */
  readonly turns = new Semaphore();
  /** Settles when nothing of it is left, rejects when that failed for now. */
  ending: Promise<void> | undefined;
  endReason: EndReason | undefined;
  /** True when only the server still waits for the rest of its removal. */
  isLingering = false;
  /** True once a client could have used it: only then its end is recorded. */
  hasServed: boolean;
  /** At most one at a time. */
  change: Change | undefined;
  requests = 0;
  readonly use: SandboxUse;
  /** By resource, when its lack was told last. */
  readonly toldShortages = new Map<string, number>();
  /** Time of the last request's start or end. */
  lastUsedAtMs: number;
  #record: SandboxRecord;
  #runtime: Sandbox | undefined;
  #successor: HeldSandbox | undefined;
  readonly #ended = new AbortController();

  /** @param use of the one that it succeeds; without, a sandbox of an earlier server is counted from now on. */
  constructor(record: SandboxRecord, runtime?: Sandbox, use = new SandboxUse(runtime?.cpuSeconds)) {
    this.use = use;
    this.#record = record;
    this.#runtime = runtime;
    this.hasServed = runtime !== undefined;
    this.lastUsedAtMs = record.startedAtMs;
    // Most creations are never given up, so this rejection has no handler.
    this.undone.promise.catch(() => {});
    // One listener per request and per watcher: many are no sign of a leak.
    setMaxListeners(0, this.#ended.signal);
  }

  get record(): SandboxRecord {
    return this.#record;
  }

  get ended(): AbortSignal {
    return this.#ended.signal;
  }

  get isEnding(): boolean {
    return this.#record.state === "killing";
  }

  /** @throws SandboxError aborted while it is being killed. */
  throwIfEnding(): void {
    if (!this.isEnding) return;
    throw new SandboxError("sandbox_being_killed", `Sandbox "${this.#record.id}" is being killed`);
  }

  get runtime(): Sandbox {
    if (this.#record.state !== "running") throw this.#notRunning();
    return this.handle;
  }

  /** The backend's handle, of a paused sandbox too. @throws SandboxError unavailable while there is none. */
  get handle(): Sandbox {
    if (this.#runtime === undefined) throw this.#notRunning();
    return this.#runtime;
  }

  get isReachable(): boolean {
    const { state } = this.#record;
    return (
      state === "running" || this.wakesByTraffic || (state === "paused" && this.change?.kind === "resuming")
    );
  }

  /** True when it is paused and a request resumes it: never without its processes, which the request may be meant for. */
  get wakesByTraffic(): boolean {
    const { state, autoResume, isStopped } = this.#record;
    return state === "paused" && autoResume && isStopped !== true;
  }

  get isFrozen(): boolean {
    return this.#record.state === "paused" || this.change !== undefined;
  }

  async adopted(): Promise<readonly AdoptedProcess[]> {
    if (this.isEnding) throw this.#notRunning();
    return (await this.handle.adoption?.processes()) ?? [];
  }

  async stats(): Promise<Stats> {
    if (this.isEnding) throw this.#notRunning();
    const { handle } = this;
    const stats = await handle.stats();
    this.use.note(handle, stats);
    return stats;
  }

  /** Ready to serve, but not yet assigned to a client. */
  warm(record: SandboxRecord, runtime: Sandbox): void {
    this.#record = record;
    this.#runtime = runtime;
  }

  run(record: SandboxRecord, runtime: Sandbox): void {
    this.warm(record, runtime);
    this.hasServed = true;
    this.lastUsedAtMs = record.startedAtMs;
  }

  /** Changes the record: running or paused, a later end, network rules. Nothing leads out of `killing`. */
  update(change: Partial<SandboxRecord>): void {
    if (!this.isEnding) this.#record = { ...this.#record, ...change };
  }

  /** Runs an operation as the sandbox's one `change`. */
  async during<T>(kind: Change["kind"], run: () => Promise<T>): Promise<T> {
    const done = run().finally(() => {
      this.change = undefined;
    });
    this.change = { kind, done };
    return done;
  }

  /**
   * True when the caller should wait for a running resumption, and look again.
   * @throws SandboxError aborted for any other operation.
   */
  isResuming(): boolean {
    if (this.change === undefined) return false;
    if (this.change.kind === "resuming") return true;
    const doing = this.change.kind === "pausing" ? "paused" : "snapshotted";
    throw new SandboxError("sandbox_transitioning", `Sandbox "${this.#record.id}" is being ${doing}`);
  }

  /** The current backend sandbox: this one, or its latest successor. */
  get current(): HeldSandbox {
    return this.#successor?.current ?? this;
  }

  /**
   * Replaces this sandbox because its processes end: all watchers of `ended` drop their state before this returns.
   * @param announce registers the successor.
   */
  succeed(announce: (successor: HeldSandbox) => void): HeldSandbox {
    const successor = new HeldSandbox(this.#record, this.#runtime, this.use);
    this.#successor = successor;
    announce(successor);
    this.#record = { ...this.#record, state: "killing" };
    this.#ended.abort("paused without memory");
    return successor;
  }

  /**
   * Stops it from serving. All watchers of `ended` are called before this returns. The first reason counts.
   * @returns the backend's sandbox to destroy; undefined during a creation, whose creator destroys it.
   */
  end(reason: EndReason): Sandbox | undefined {
    // The record's state is no sign of an earlier call: a server before this one may have written `killing`.
    if (this.endReason !== undefined) return this.#runtime;
    this.#record = { ...this.#record, state: "killing" };
    this.endReason = reason;
    this.#ended.abort(reason);
    const text = `sandbox "${this.#record.id}" was ended while it was being made`;
    this.making.abort(
      factsOfEnd(reason).isLoss === true
        ? new SandboxError("sandbox_lost", `${text}: ${reason}`)
        : new SandboxError("sandbox_ended_meanwhile", text),
    );
    return this.#runtime;
  }

  #notRunning(): SandboxError {
    return new SandboxError("sandbox_not_running", `sandbox "${this.#record.id}" is not running`);
  }
}
