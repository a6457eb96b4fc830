import { setMaxListeners } from "node:events";
import { SandboxError } from "../kernel/errors.js";
import type { Sandbox } from "./backend.js";
import type { EndReason, LiveSandbox, SandboxRecord } from "./live-sandbox.js";

/**
 * One sandbox of the registry, from the moment it is asked for until nothing of it is left. It only
 * moves forward: creating, running, killing.
 */
export class HeldSandbox implements LiveSandbox {
  /** Aborted when it is not wanted any more while it is still being made. */
  readonly making = new AbortController();
  /** Settles when a sandbox that was given up while being made is undone. */
  readonly undone = Promise.withResolvers<void>();
  /** Settles when nothing of it is left, rejects when that did not work out for now. */
  ending: Promise<void> | undefined;
  /** Set when what is left of it is the server's own affair: nobody waits for it any more. */
  isLingering = false;
  /** True once a client could have used it: then its end is worth remembering. */
  hasServed: boolean;
  #record: SandboxRecord;
  #runtime: Sandbox | undefined;
  #endReason: EndReason | undefined;
  readonly #ended = new AbortController();

  constructor(record: SandboxRecord, runtime?: Sandbox) {
    this.#record = record;
    this.#runtime = runtime;
    this.hasServed = runtime !== undefined;
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
    if (this.#runtime === undefined || this.#record.state !== "running") {
      throw new SandboxError("unavailable", `sandbox "${this.#record.id}" is not running`);
    }
    return this.#runtime;
  }

  /** From `creating` to `running`. */
  run(record: SandboxRecord, runtime: Sandbox): void {
    this.#record = record;
    this.#runtime = runtime;
    this.hasServed = true;
  }

  moveEnd(endsAtMs: number): void {
    this.#record = { ...this.#record, endsAtMs };
  }

  /**
   * Stops it from serving; everybody who watches `ended` learns it before this returns. The first
   * reason counts.
   * @returns what is to be destroyed; undefined while it is being made: whoever makes it undoes that.
   */
  end(reason: EndReason): Sandbox | undefined {
    if (this.isEnding) return this.#runtime;
    this.#record = { ...this.#record, state: "killing" };
    this.#endReason = reason;
    this.#ended.abort(reason);
    const text = `sandbox "${this.#record.id}" was ended while it was being made`;
    this.making.abort(new SandboxError("aborted", text));
    return this.#runtime;
  }
}
