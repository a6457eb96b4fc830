import { type Clock, digestOf, type Logger, type TenantRecords } from "@coppice/core";
import { type FleetStore, untilCommitted } from "../store/fleet-store.js";
import { KeyView } from "../store/key-view.js";

type RecordSource = Parameters<TenantRecords["use"]>[0];
type RecordFollower = Parameters<RecordSource>[1];
type CommonRecords = Awaited<ReturnType<RecordSource>>;
type TenantRecord = Parameters<RecordFollower["began"]>[0][number];

interface FleetRecordsOptions {
  readonly store: FleetStore;
  readonly kind: string;
  readonly follower: RecordFollower;
  /** Called with the revision of each change; resolves when the other servers have heard of it, or do not answer. */
  readonly announce: (revision: number) => Promise<void>;
  readonly clock: Clock;
  readonly log: Pick<Logger, "debug" | "error">;
}

/** How long a server waits to hear of a change from the store. */
const PATIENCE_MS = 1000;

/** Records of tenants that all servers of a fleet have: a key each, below one for each tenant. */
export class FleetRecords implements CommonRecords {
  readonly #options: FleetRecordsOptions;
  readonly #prefix: string;
  readonly #view: KeyView<string>;

  private constructor(options: FleetRecordsOptions) {
    this.#options = options;
    const { store, kind, follower, log } = options;
    this.#prefix = `records/${kind}/`;
    this.#view = new KeyView({
      store,
      prefix: this.#prefix,
      parse: ({ value }) => value,
      onChange: (name, text) => follower.changed(idOf(name), text),
      log,
    });
  }

  static async open(options: FleetRecordsOptions): Promise<FleetRecords> {
    const records = new FleetRecords(options);
    await records.#view.start();
    options.follower.began([...records.#view.entries()].map(([name, text]) => ({ id: idOf(name), text })));
    return records;
  }

  async list(tenant: string): Promise<readonly TenantRecord[]> {
    const { entries } = await this.#options.store.list(this.#of(tenant));
    return entries.map(({ key, value }) => ({ id: idOf(key), text: value }));
  }

  async change(
    tenant: string,
    id: string,
    decide: (all: readonly TenantRecord[]) => string | undefined,
  ): Promise<void> {
    const { store, announce } = this.#options;
    const prefix = this.#of(tenant);
    const key = prefix + id;
    await untilCommitted(async () => {
      const { entries, revision } = await store.list(prefix);
      const text = decide(entries.map((entry) => ({ id: idOf(entry.key), text: entry.value })));
      const known = entries.find((entry) => entry.key === key);
      if (text === known?.value) return true;
      const committed = await store.commit(
        [
          { prefix, notPutAfter: revision },
          { key, modRevision: known?.modRevision ?? 0 },
        ],
        [text === undefined ? { delete: key } : { put: key, value: text }],
      );
      if (committed === undefined) return false;
      // From the answer on all servers act by it.
      await Promise.all([this.heard(committed), announce(committed)]);
      return true;
    });
  }

  /** Resolves when the follower knows of a change, or cannot know soon. */
  async heard(revision: number): Promise<void> {
    const { promise: impatient, resolve } = Promise.withResolvers<void>();
    const cancel = this.#options.clock.after(PATIENCE_MS, resolve);
    await Promise.race([this.#view.reached(revision), impatient]);
    cancel();
  }

  stop(): Promise<void> {
    return this.#view.stop();
  }

  #of(tenant: string): string {
    return `${this.#prefix}${digestOf(tenant)}/`;
  }
}

function idOf(key: string): string {
  return key.slice(key.lastIndexOf("/") + 1);
}
