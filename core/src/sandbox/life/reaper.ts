import type { Clock } from "../../kernel/clock.js";
import { DeadlineHeap } from "./deadline-heap.js";

// Many sandboxes may end at the same moment; ending all at once would hold up every request.
const TAKEN_AT_ONCE = 64;

/** Calls `expire` for each id at its deadline. One timer is armed, for the earliest deadline: no work in between. */
export class Reaper {
  readonly #clock: Clock;
  readonly #expire: (id: string) => void;
  readonly #deadlines = new DeadlineHeap();
  #armed: { readonly atMs: number; readonly disarm: () => void } | undefined;
  #isRunning = false;

  constructor(clock: Clock, expire: (id: string) => void) {
    this.#clock = clock;
    this.#expire = expire;
  }

  /** Starts to call; deadlines may be set before. */
  start(): void {
    this.#isRunning = true;
    this.#arm();
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
    this.#arm();
  }

  delete(id: string): void {
    this.#deadlines.delete(id);
    if (this.#deadlines.size === 0) this.#disarm();
  }

  #arm(): void {
    const earliest = this.#deadlines.peek();
    if (!this.#isRunning || earliest === undefined) return;
    // A timer that is too early finds nothing due and arms the next one: cheaper than a new timer per move.
    if (this.#armed !== undefined && this.#armed.atMs <= earliest.atMs) return;
    this.#disarm();
    const disarm = this.#clock.after(Math.max(0, earliest.atMs - this.#clock.now()), () => this.#take());
    this.#armed = { atMs: earliest.atMs, disarm };
  }

  #disarm(): void {
    this.#armed?.disarm();
    this.#armed = undefined;
  }

  #take(): void {
    this.#armed = undefined;
    const nowMs = this.#clock.now();
    for (let taken = 0; taken < TAKEN_AT_ONCE; taken += 1) {
      const earliest = this.#deadlines.peek();
      if (earliest === undefined || earliest.atMs > nowMs) break;
      this.#deadlines.delete(earliest.id);
      this.#expire(earliest.id);
    }
    this.#arm();
  }
}
