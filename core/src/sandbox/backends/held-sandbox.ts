import { setMaxListeners } from "node:events";
import { SandboxError } from "../../kernel/errors.js";
import type { Sandbox, Stats } from "../contract/backend.js";
import type { EndReason, LiveSandbox, SandboxRecord } from "../model/live-sandbox.js";
import type { AdoptedProcess } from "../contract/process.js";
import { Semaphore } from "./semaphore.js";

/** An operation on a sandbox that is under way. */
export interface Change {
  readonly kind: "pausing" | "resuming" | "snapshotting";
  readonly done: Promise<unknown>;
}

/**
 * One sandbox of the registry, from the moment it is asked for until nothing of it is left: creating,
 * then running and paused in turn, then killing, from which there is no way back.
 */
export class HeldSandbox implements LiveSandbox {
  /** Aborted when it is not wanted any more while it is still being made. */
  readonly making = new AbortController();
  /** Settles when a sandbox that was given up while being made is undone. */
  readonly undone = Promise.withResolvers<void>();
  /** Lets one change of its network policy or its limits in at a time. */
  readonly turns = new Semaphore(1);
  /** Settles when nothing of it is left, rejects when that did not work out for now. */
  ending: Promise<void> | undefined;
  /** Set when what is left of it is the server's own affair: nobody waits for it any more. */
  isLingering = false;
  /** True once a client could have used it: then its end is worth remembering. */
  hasServed: boolean;
  /** At most one at a time. */
  change: Change | undefined;
  /** Requests to it that are being served. */
  requests = 0;
  /** When the last request to it came or was done. */
  lastUsedAtMs: number;
  #record: SandboxRecord;
  #runtime: Sandbox | undefined;
  #endReason: EndReason | undefined;
  #successor: HeldSandbox | undefined;
  readonly #ended = new AbortController();

  constructor(record: SandboxRecord, runtime?: Sandbox) {
    this.#record = record;
    this.#runtime = runtime;
    this.hasServed = runtime !== undefined;
    this.lastUsedAtMs = record.startedAtMs;
    // Most sandboxes are never given up while being made, so nobody waits for that to be undone.
    this.undone.promise.catch(() => {});
    // One listener per request and per watcher: their number is no sign of a leak.
    setMaxListeners(0, this.#ended.signal);
  }

  get record(): SandboxRecord {
    return this.#record;
  }

  get ended(): AbortSignal {
    return this.#ended.signal;
  }

  get endReason(): EndReason | undefined {
    return this.#endReason;
  }

  get isEnding(): boolean {
    return this.#record.state === "killing";
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
    const { state, autoResume } = this.#record;
    return state === "running" || (state === "paused" && (autoResume || this.change?.kind === "resuming"));
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
    return this.handle.stats();
  }

  /** It works like one that runs, and nobody has been told of it yet. */
  warm(record: SandboxRecord, runtime: Sandbox): void {
    this.#record = record;
    this.#runtime = runtime;
  }

  /** From `creating` to `running`. */
  run(record: SandboxRecord, runtime: Sandbox): void {
    this.#record = record;
    this.#runtime = runtime;
    this.hasServed = true;
    this.lastUsedAtMs = record.startedAtMs;
  }

  /** Between `running` and `paused`, a later end, other network rules. Nothing leads out of `killing`. */
  update(change: Partial<SandboxRecord>): void {
    if (!this.isEnding) this.#record = { ...this.#record, ...change };
  }

  /** Does what `change` says until it is done. Only while nothing else is being done to it. */
  async during<T>(kind: Change["kind"], run: () => Promise<T>): Promise<T> {
    const done = run().finally(() => {
      this.change = undefined;
    });
    this.change = { kind, done };
    return done;
  }

  /**
   * Whether to wait for a resumption that is under way, and to look again: nobody has to be told of that.
   * @throws SandboxError aborted for any other change.
   */
  isResuming(): boolean {
    if (this.change === undefined) return false;
    const { id } = this.#record;
    if (this.change.kind === "pausing") throw new SandboxError("aborted", `Sandbox "${id}" is being paused`);
    if (this.change.kind === "snapshotting") {
      throw new SandboxError("aborted", `Sandbox "${id}" is being snapshotted`);
    }
    return true;
  }

  /** The current backend sandbox: the first one, or its successor. */
  get current(): HeldSandbox {
    return this.#successor?.current ?? this;
  }

  /**
   * Another one that stands for the sandbox from now on, because its processes end: everybody who watches `ended`
   * drops what they keep of them before this returns.
   * @param announce makes it the one that is found.
   */
  succeed(announce: (successor: HeldSandbox) => void): HeldSandbox {
    const successor = new HeldSandbox(this.#record, this.#runtime);
    this.#successor = successor;
    announce(successor);
    this.#record = { ...this.#record, state: "killing" };
    this.#ended.abort("paused without memory");
    return successor;
  }

  /**
   * Stops it from serving; everybody who watches `ended` learns it before this returns. The first
   * reason counts.
   * @returns what is to be destroyed; undefined while it is being made: whoever makes it undoes that.
   */
  end(reason: EndReason): Sandbox | undefined {
    // Not by its state: the last server may have written that it is being killed, and why.
    if (this.#endReason !== undefined) return this.#runtime;
    this.#record = { ...this.#record, state: "killing" };
    this.#endReason = reason;
    this.#ended.abort(reason);
    const text = `sandbox "${this.#record.id}" was ended while it was being made`;
    const isLost = reason === "out of memory" || reason === "out of disk" || reason === "backend lost";
    this.making.abort(
      isLost ? new SandboxError("unavailable", `${text}: ${reason}`) : new SandboxError("aborted", text),
    );
    return this.#runtime;
  }

  #notRunning(): SandboxError {
    return new SandboxError("unavailable", `sandbox "${this.#record.id}" is not running`);
  }
}
