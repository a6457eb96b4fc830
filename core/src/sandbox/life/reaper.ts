import type { Clock } from "../../kernel/clock.js";

// Many sandboxes may end at the same moment; ending all at once would hold up every request.
const TAKEN_AT_ONCE = 64;

/** Calls `expire` for each id at its deadline. One timer is armed, for the earliest deadline: no work in between. */
export class Reaper {
  readonly #clock: Clock;
  readonly #expire: (id: string) => void;
  readonly #deadlines = new Map<string, number>();
  #armed: { readonly atMs: number; readonly disarm: () => void } | undefined;
  #isRunning = false;

  constructor(clock: Clock, expire: (id: string) => void) {
    this.#clock = clock;
    this.#expire = expire;
  }

  /** Starts to call; deadlines may be set before. */
  start(): void {
    this.#isRunning = true;
    if (this.#deadlines.size > 0) this.#arm(this.#clock.now());
  }

  stop(): void {
    this.#isRunning = false;
    this.#deadlines.clear();
    this.#disarm();
  }

  /** Sets or moves a deadline; `undefined` = never. */
  set(id: string, atMs: number | undefined): void {
    if (atMs === undefined) return this.delete(id);
    this.#deadlines.set(id, atMs);
    if (this.#isRunning) this.#arm(atMs);
  }

  delete(id: string): void {
    this.#deadlines.delete(id);
    if (this.#deadlines.size === 0) this.#disarm();
  }

  #arm(atMs: number): void {
    // A timer that is too early finds nothing due and arms the next one: cheaper than a new timer per move.
    if (this.#armed !== undefined && this.#armed.atMs <= atMs) return;
    this.#disarm();
    const disarm = this.#clock.after(Math.max(0, atMs - this.#clock.now()), () => this.#take());
    this.#armed = { atMs, disarm };
  }

  #disarm(): void {
    this.#armed?.disarm();
    this.#armed = undefined;
  }

  /** Looks at every deadline, which is cheap for as many sandboxes as a host can hold. */
  #take(): void {
    this.#armed = undefined;
    const nowMs = this.#clock.now();
    const due: string[] = [];
    let nextMs = Infinity;
    for (const [id, atMs] of this.#deadlines) {
      if (atMs <= nowMs) due.push(id);
      else nextMs = Math.min(nextMs, atMs);
      if (due.length === TAKEN_AT_ONCE) break;
    }
    for (const id of due) this.#deadlines.delete(id);
    if (due.length === TAKEN_AT_ONCE) this.#arm(nowMs);
    else if (nextMs < Infinity) this.#arm(nextMs);
    for (const id of due) this.#expire(id);
  }
}
