import type { Teardown } from "./teardown.js";

interface RemovableRecord {
  readonly id: string;
  readonly owner: string;
  readonly state: string;
}

/** Snapshots or volumes by id, each until nothing of it is left. */
export class RemovableRecords<R extends RemovableRecord> extends Map<string, R> {
  /** Removals under way, or to be retried. */
  readonly #removals = new Map<string, Promise<void>>();
  readonly #remove: (id: string, run: () => Promise<void>) => Promise<void>;

  constructor(teardown: Teardown, what: "snapshot" | "volume") {
    super();
    this.#remove = (id, run) => teardown.undo({ what, id, run }).soon;
  }

  /** Those that a tenant can use. */
  readyOf(tenant: string): R[] {
    return [...this.values()].filter(({ owner, state }) => owner === tenant && state === "ready");
  }

  isBeingRemoved(id: string): boolean {
    return this.#removals.has(id);
  }

  /**
   * Removes one permanently; it counts until that is done. @param erase safe to repeat.
   * @throws SandboxError unavailable when it failed for now.
   */
  discard(record: R, erase: (removing: R) => Promise<void>): Promise<void> {
    const { id } = record;
    const earlier = this.#removals.get(id);
    if (earlier !== undefined) return earlier;
    const removing = { ...record, state: "removing" };
    this.set(id, removing);
    const soon = this.#remove(id, async () => {
      await erase(removing);
      this.delete(id);
      this.#removals.delete(id);
    });
    this.#removals.set(id, soon);
    return soon;
  }
}
