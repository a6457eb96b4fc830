const COUNTABLE = [
  "sandboxes",
  "snapshots",
  "removals",
  "commands",
  "executions",
  "pauses",
  "resumptions",
  "files",
  "disconnects",
] as const;

/** Counts of the clients. */
export type Countable = (typeof COUNTABLE)[number];

/** Observations of a soak's clients. */
export class Tally {
  readonly #sure = new Map<Countable, number>();
  readonly #perhaps = new Map<Countable, number>();
  readonly #faults = new Map<string, number>();

  /** The server has done it. */
  sure(what: Countable, times = 1): void {
    this.#sure.set(what, this.least(what) + times);
  }

  /** The server may have done it: the client left before the answer, or the sandbox ended meanwhile. */
  perhaps(what: Countable, times = 1): void {
    this.#perhaps.set(what, (this.#perhaps.get(what) ?? 0) + times);
  }

  /** Records a fault. */
  fault(what: string): void {
    this.#faults.set(what, (this.#faults.get(what) ?? 0) + 1);
  }

  least(what: Countable): number {
    return this.#sure.get(what) ?? 0;
  }

  most(what: Countable): number {
    return this.least(what) + (this.#perhaps.get(what) ?? 0);
  }

  /** Operations that certainly happened. */
  get done(): Readonly<Record<Countable, number>> {
    return Object.fromEntries(COUNTABLE.map((what) => [what, this.least(what)])) as Record<Countable, number>;
  }

  /** Faults as text, each once, with its count. */
  get faults(): readonly string[] {
    return [...this.#faults].map(([what, times]) => (times === 1 ? what : `${times} times: ${what}`));
  }
}
