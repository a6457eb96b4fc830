/** Runs what concerns the same name one after the other. */
export class Turns {
  readonly #last = new Map<string, Promise<void>>();

  async run(name: string, work: () => Promise<void>): Promise<void> {
    const done = (this.#last.get(name) ?? Promise.resolve()).then(work);
    // A failure is its own caller's.
    const settled = done.catch(() => undefined);
    this.#last.set(name, settled);
    try {
      await done;
    } finally {
      if (this.#last.get(name) === settled) this.#last.delete(name);
    }
  }
}
