import { setTimeout as sleep } from "node:timers/promises";
import type { Logger } from "@coppice/core";
import { type Entry, type FleetStore, StoreUnavailable } from "./fleet-store.js";

interface KeyViewOptions<T> {
  readonly store: FleetStore;
  readonly prefix: string;
  /** What is kept of an entry; undefined leaves it out. @param name the key without the prefix. */
  readonly parse: (entry: Entry, name: string) => T | undefined;
  /**
   * Called for each change after the first listing; `value` is undefined for a name that is gone. One for which it throws is
   * told again.
   */
  readonly onChange?: (name: string, value: T | undefined, before: T | undefined) => void;
  readonly log: Pick<Logger, "debug" | "error">;
}

const RETRY_MS = 1000;

/** All entries with a prefix, kept up to date by one watch. */
export class KeyView<T> {
  readonly #options: KeyViewOptions<T>;
  readonly #values = new Map<string, T>();
  readonly #stopping = new AbortController();
  readonly #waiting = new Set<() => void>();
  #revision = 0;
  #watching: Promise<void> = Promise.resolve();

  constructor(options: KeyViewOptions<T>) {
    this.#options = options;
  }

  get(name: string): T | undefined {
    return this.#values.get(name);
  }

  get size(): number {
    return this.#values.size;
  }

  /** The last revision that it has all changes of. */
  get revision(): number {
    return this.#revision;
  }

  /** Resolves when it has the changes of a commit, which has changed one of its keys. */
  async reached(revision: number): Promise<void> {
    while (this.#revision < revision) await new Promise<void>((resolve) => this.#waiting.add(resolve));
  }

  entries(): IterableIterator<[string, T]> {
    return this.#values.entries();
  }

  /** Resolves when the entries of this moment are there. @throws StoreUnavailable */
  async start(): Promise<void> {
    const { store, prefix } = this.#options;
    const revision = await store.each(prefix, (entry) => {
      const name = entry.key.slice(prefix.length);
      const value = this.#options.parse(entry, name);
      if (value !== undefined) this.#values.set(name, value);
    });
    this.#revision = revision;
    this.#watching = this.#watch(revision);
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#watching;
  }

  async #watch(from: number): Promise<void> {
    const { store, prefix, log } = this.#options;
    const { signal } = this.#stopping;
    let revision: number | undefined = from;
    while (!signal.aborted) {
      try {
        revision ??= await this.#relist();
        for await (const update of store.watch(prefix, revision, signal)) {
          if (update.kind === "changes") {
            for (const { key, entry } of update.changes) this.#set(key.slice(prefix.length), entry);
            this.#arrive(update.revision);
          } else revision = undefined;
        }
      } catch (error) {
        if (signal.aborted) return;
        revision = undefined;
        const isExpected = error instanceof StoreUnavailable;
        log[isExpected ? "debug" : "error"]({ err: error, prefix }, "the fleet's store is read again");
        await sleep(RETRY_MS, undefined, { signal }).catch(() => undefined);
      }
    }
  }

  async #relist(): Promise<number> {
    const { store, prefix } = this.#options;
    const found = new Set<string>();
    const revision = await store.each(prefix, (entry) => {
      const name = entry.key.slice(prefix.length);
      found.add(name);
      this.#set(name, entry);
    });
    for (const name of this.#values.keys()) if (!found.has(name)) this.#set(name, undefined);
    this.#arrive(revision);
    return revision;
  }

  #arrive(revision: number): void {
    this.#revision = revision;
    for (const wake of this.#waiting) wake();
    this.#waiting.clear();
  }

  #set(name: string, entry: Entry | undefined): void {
    const before = this.#values.get(name);
    const value = entry && this.#options.parse(entry, name);
    if (value === undefined) this.#values.delete(name);
    else this.#values.set(name, value);
    if (value === undefined && before === undefined) return;
    try {
      this.#options.onChange?.(name, value, before);
    } catch (error) {
      // The next listing tells that a name is gone only of those that are known.
      if (before !== undefined) this.#values.set(name, before);
      throw error;
    }
  }
}
