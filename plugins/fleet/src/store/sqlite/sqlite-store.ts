import { randomUUID } from "node:crypto";
import type { DatabaseSync } from "node:sqlite";
import { setTimeout as sleep } from "node:timers/promises";
import { type Clock, type Inferred, openDatabase, Table, transaction } from "@coppice/core";
import { z } from "zod";
import {
  afterPrefix,
  type Change,
  type Check,
  type Entry,
  type FleetStore,
  type Lease,
  type Listing,
  type Update,
} from "../fleet-store.js";

/** Each migrates a database from that version to the next. */
const MIGRATIONS: readonly string[] = [
  `CREATE TABLE lease (
     id TEXT PRIMARY KEY,
     ttl_ms INTEGER NOT NULL,
     ends_at_ms REAL NOT NULL
   ) STRICT;
   CREATE TABLE entry (
     key TEXT PRIMARY KEY,
     value TEXT NOT NULL,
     created INTEGER NOT NULL,
     modified INTEGER NOT NULL,
     lease TEXT REFERENCES lease (id)
   ) STRICT, WITHOUT ROWID;
   CREATE INDEX entry_by_lease ON entry (lease);
   CREATE TABLE change (
     sequence INTEGER PRIMARY KEY AUTOINCREMENT,
     revision INTEGER NOT NULL,
     key TEXT NOT NULL,
     value TEXT,
     created INTEGER NOT NULL
   ) STRICT;
   CREATE INDEX change_by_revision ON change (revision);
   CREATE TABLE state (
     revision INTEGER NOT NULL,
     compacted INTEGER NOT NULL
   ) STRICT;
   INSERT INTO state VALUES (1, 0);`,
  "ALTER TABLE lease ADD COLUMN ends_at_up_ms REAL",
];

/** Condition of leases that have ended: by the monotonic clock twice, and by the wall clock. */
const HAS_ENDED = "CASE WHEN ends_at_up_ms <= ? + ttl_ms THEN ends_at_up_ms <= ? ELSE ends_at_ms <= ? END";

interface SqliteStoreOptions {
  readonly path: string;
  readonly clock: Clock;
  /** Milliseconds of a clock that all processes of this host share, and that nothing sets. */
  readonly monotonic?: () => number;
  /** How often a watch looks for what other processes have committed. */
  readonly pollMs: number;
  /** Revisions that watches can go back. */
  readonly keptRevisions: number;
}

const entry = z.object({
  key: z.string(),
  value: z.string(),
  createRevision: z.number(),
  modRevision: z.number(),
  lease: z.string().optional(),
});

const change = z.object({
  revision: z.number(),
  key: z.string(),
  /** Undefined where it was deleted. */
  value: z.string().optional(),
  createRevision: z.number(),
});

/**
 * The wall clock decides on a lease of before the host's last start alone, for which the other time is too far ahead: all
 * leases would end at once where somebody sets that clock.
 */
const lease = z.object({
  id: z.string(),
  ttlMs: z.number(),
  endsAtMs: z.number(),
  endsAtUpMs: z.number().optional(),
});

/** The only row tells how far the store is. */
const state = z.object({ revision: z.number(), compacted: z.number() });

/** The shared state in an SQLite file, for several servers of one host. */
export class SqliteStore implements FleetStore {
  readonly #database: DatabaseSync;
  readonly #options: SqliteStoreOptions;
  readonly #monotonic: () => number;
  readonly #entries: Table<typeof entry>;
  readonly #changes: Table<typeof change>;
  readonly #leases: Table<typeof lease>;
  readonly #state: Table<typeof state>;

  /** @throws Error that names the file when it cannot be used. */
  constructor(options: SqliteStoreOptions) {
    this.#options = options;
    this.#monotonic = options.monotonic ?? (() => Number(process.hrtime.bigint() / 1_000_000n));
    const database = openDatabase({ path: options.path, migrations: MIGRATIONS });
    this.#database = database;
    const columns = { createRevision: "created", modRevision: "modified" };
    this.#entries = new Table(database, { name: "entry", schema: entry, columns });
    this.#changes = new Table(database, {
      name: "change",
      schema: change,
      columns: { createRevision: "created" },
    });
    this.#leases = new Table(database, { name: "lease", schema: lease });
    this.#state = new Table(database, { name: "state", schema: state });
  }

  async get(key: string): Promise<Entry | undefined> {
    return this.#write(() => this.#entry(key));
  }

  async list(prefix: string): Promise<Listing> {
    const entries: Entry[] = [];
    const revision = await this.each(prefix, (entry) => entries.push(entry));
    return { entries, revision };
  }

  async each(prefix: string, visit: (entry: Entry) => void, afterRevision = 0): Promise<number> {
    return this.#write(() => {
      // One by one: there may be more than fit into memory at once.
      const rows = this.#database
        .prepare(
          `SELECT key, value, created AS createRevision, modified AS modRevision FROM entry
           WHERE key >= ? AND key < ? AND modified > ? ORDER BY key`,
        )
        .iterate(prefix, afterPrefix(prefix), afterRevision) as unknown as Iterable<Entry>;
      for (const row of rows) visit(row);
      return this.#revision();
    });
  }

  async commit(checks: readonly Check[], changes: readonly Change[]): Promise<number | undefined> {
    return this.#write(() => {
      const isTrue = (check: Check): boolean => {
        if ("prefix" in check) return !this.#wasPutAfter(check.notPutAfter, check.prefix);
        const { createRevision, modRevision } = check;
        const found = this.#entry(check.key);
        return (
          (createRevision ?? found?.createRevision ?? 0) === (found?.createRevision ?? 0) &&
          (modRevision ?? found?.modRevision ?? 0) === (found?.modRevision ?? 0)
        );
      };
      const hasLease = (change: Change): boolean =>
        !("put" in change) || change.lease === undefined || this.#hasLease(change.lease);
      if (!checks.every(isTrue) || !changes.every(hasLease)) return undefined;
      this.#apply(changes);
      return this.#revision();
    });
  }

  async *watch(prefix: string, afterRevision: number, signal: AbortSignal): AsyncGenerator<Update> {
    let revision = afterRevision;
    while (!signal.aborted) {
      const seen = revision;
      const found = this.#write(() => ({
        rows: this.#changes.all({ revision: { ">": seen }, key: { starts: prefix } }, { by: "sequence" }),
        ...this.#now(),
      }));
      if (seen < found.compacted) {
        yield { kind: "compacted" };
        return;
      }
      ({ revision } = found);
      if (found.rows.length > 0) yield { kind: "changes", revision, changes: found.rows.map(changeOf) };
      else await sleep(this.#options.pollMs, undefined, { signal }).catch(() => undefined);
    }
  }

  async grant(ttlMs: number): Promise<Lease> {
    const lease = { id: randomUUID(), ttlMs };
    const [endsAtMs, endsAtUpMs] = [this.#options.clock.now() + ttlMs, this.#monotonic() + ttlMs];
    this.#write(() => this.#leases.insert({ ...lease, endsAtMs, endsAtUpMs }));
    return lease;
  }

  async renew({ id }: Lease): Promise<boolean> {
    return this.#write(() => {
      const sql = "UPDATE lease SET ends_at_ms = ? + ttl_ms, ends_at_up_ms = ? + ttl_ms WHERE id = ?";
      return this.#leases.run(sql, this.#options.clock.now(), this.#monotonic(), id) > 0;
    });
  }

  async revoke({ id }: Lease): Promise<void> {
    this.#write(() => this.#end(id));
  }

  /** A file has no majority to lose. */
  async lacksMajority(): Promise<boolean> {
    return false;
  }

  async members(): Promise<readonly []> {
    return [];
  }

  async close(): Promise<void> {
    this.#database.close();
  }

  /** Runs something of this moment: leases whose time is over have ended before it. */
  #write<T>(run: () => T): T {
    return transaction(this.#database, () => {
      const upMs = this.#monotonic();
      const ended = this.#leases.select(`WHERE ${HAS_ENDED}`, upMs, upMs, this.#options.clock.now());
      for (const { id } of ended) this.#end(id);
      return run();
    });
  }

  #end(lease: string): void {
    this.#apply(this.#entries.all({ lease }).map(({ key }) => ({ delete: key })));
    this.#leases.remove({ id: lease });
  }

  #apply(changes: readonly Change[]): void {
    const before = this.#revision();
    const revision = before + 1;
    let isChanged = false;
    for (const change of changes) {
      const key = "put" in change ? change.put : change.delete;
      const found = this.#entry(key);
      if ("put" in change) {
        const { value, lease } = change;
        const createRevision = found?.createRevision ?? revision;
        this.#entries.insert(
          { key, value, createRevision, modRevision: revision, lease: lease?.id },
          "REPLACE",
        );
      } else if (found === undefined) continue;
      else this.#entries.remove({ key });
      isChanged = true;
      const value = "put" in change ? change.value : undefined;
      this.#changes.insert({ revision, key, value, createRevision: found?.createRevision ?? revision });
    }
    if (!isChanged) return;
    const compacted = Math.max(0, revision - this.#options.keptRevisions);
    this.#state.update({}, { revision, compacted });
    this.#changes.remove({ revision: { "<=": compacted } });
  }

  #hasLease({ id }: Lease): boolean {
    return this.#leases.has({ id });
  }

  #wasPutAfter(revision: number, prefix: string): boolean {
    const within = { ">=": prefix, "<": afterPrefix(prefix) };
    return this.#entries.has({ key: within, modRevision: { ">": revision } });
  }

  #entry(key: string): Entry | undefined {
    const found = this.#entries.get({ key });
    if (found === undefined) return undefined;
    const { value, createRevision, modRevision } = found;
    return { key, value, createRevision, modRevision };
  }

  #revision(): number {
    return this.#now().revision;
  }

  #now(): Inferred<typeof state> {
    const [now] = this.#state.all();
    if (now === undefined) throw new Error(`${this.#options.path} has lost its revision`);
    return now;
  }
}

function changeOf({ key, value, createRevision, revision }: Inferred<typeof change>) {
  return {
    key,
    entry: value === undefined ? undefined : { key, value, createRevision, modRevision: revision },
  };
}
