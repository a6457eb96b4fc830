import { randomUUID } from "node:crypto";
import type { DatabaseSync } from "node:sqlite";
import { setTimeout as sleep } from "node:timers/promises";
import { type Clock, openDatabase, transaction } from "@coppice/core";
import { afterPrefix } from "../after-prefix.js";
import type { Change, Check, Entry, FleetStore, Lease, Listing, Update } from "../fleet-store.js";
import { MIGRATIONS } from "./migrations.js";

export interface SqliteStoreOptions {
  readonly path: string;
  readonly clock: Clock;
  /** How often a watch looks for what other processes have committed. */
  readonly pollMs: number;
  /** Revisions that watches can go back. */
  readonly keptRevisions: number;
}

interface EntryRow {
  readonly key: string;
  readonly value: string;
  readonly created: number;
  readonly modified: number;
}

interface ChangeRow {
  readonly revision: number;
  readonly key: string;
  readonly value: string | null;
  readonly created: number;
}

/** The shared state in an SQLite file, for several servers of one host. */
export class SqliteStore implements FleetStore {
  readonly #database: DatabaseSync;
  readonly #options: SqliteStoreOptions;

  /** @throws Error that names the file when it cannot be used. */
  constructor(options: SqliteStoreOptions) {
    this.#options = options;
    this.#database = openDatabase({ path: options.path, migrations: MIGRATIONS });
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
      const rows = this.#database
        .prepare(
          `SELECT key, value, created, modified FROM entry
           WHERE key >= ? AND key < ? AND modified > ? ORDER BY key`,
        )
        .iterate(prefix, afterPrefix(prefix), afterRevision) as unknown as Iterable<EntryRow>;
      for (const row of rows) visit(entryOf(row));
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
        rows: this.#database
          .prepare(
            `SELECT revision, key, value, created FROM change
             WHERE revision > ? AND substr(key, 1, ?) = ? ORDER BY sequence`,
          )
          .all(seen, prefix.length, prefix) as unknown as readonly ChangeRow[],
        compacted: Number(this.#database.prepare("SELECT compacted FROM state").get()?.["compacted"]),
        revision: this.#revision(),
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
    this.#write(() =>
      this.#database
        .prepare("INSERT INTO lease VALUES (?, ?, ?)")
        .run(lease.id, ttlMs, this.#options.clock.now() + ttlMs),
    );
    return lease;
  }

  async renew({ id }: Lease): Promise<boolean> {
    return this.#write(() => {
      const { changes } = this.#database
        .prepare("UPDATE lease SET ends_at_ms = ? + ttl_ms WHERE id = ?")
        .run(this.#options.clock.now(), id);
      return changes > 0;
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
      const ended = this.#database
        .prepare("SELECT id FROM lease WHERE ends_at_ms <= ?")
        .all(this.#options.clock.now());
      for (const { id } of ended) this.#end(String(id));
      return run();
    });
  }

  #end(lease: string): void {
    const rows = this.#database.prepare("SELECT key FROM entry WHERE lease = ?").all(lease);
    this.#apply(rows.map(({ key }) => ({ delete: String(key) })));
    this.#database.prepare("DELETE FROM lease WHERE id = ?").run(lease);
  }

  #apply(changes: readonly Change[]): void {
    const before = this.#revision();
    const revision = before + 1;
    let isChanged = false;
    for (const change of changes) {
      const key = "put" in change ? change.put : change.delete;
      const found = this.#entry(key);
      if ("put" in change) {
        this.#database
          .prepare(
            `INSERT INTO entry VALUES (?1, ?2, ?3, ?3, ?4)
             ON CONFLICT (key) DO UPDATE SET value = ?2, modified = ?3, lease = ?4`,
          )
          .run(key, change.value, revision, change.lease?.id ?? null);
      } else if (found === undefined) continue;
      else this.#database.prepare("DELETE FROM entry WHERE key = ?").run(key);
      isChanged = true;
      this.#database
        .prepare("INSERT INTO change (revision, key, value, created) VALUES (?, ?, ?, ?)")
        .run(revision, key, "put" in change ? change.value : null, found?.createRevision ?? revision);
    }
    if (!isChanged) return;
    const compacted = Math.max(0, revision - this.#options.keptRevisions);
    this.#database.prepare("UPDATE state SET revision = ?, compacted = ?").run(revision, compacted);
    this.#database.prepare("DELETE FROM change WHERE revision <= ?").run(compacted);
  }

  #hasLease({ id }: Lease): boolean {
    return this.#database.prepare("SELECT 1 FROM lease WHERE id = ?").get(id) !== undefined;
  }

  #wasPutAfter(revision: number, prefix: string): boolean {
    const found = this.#database
      .prepare("SELECT 1 FROM entry WHERE key >= ? AND key < ? AND modified > ?")
      .get(prefix, afterPrefix(prefix), revision);
    return found !== undefined;
  }

  #entry(key: string): Entry | undefined {
    const row = this.#database
      .prepare("SELECT key, value, created, modified FROM entry WHERE key = ?")
      .get(key) as unknown as EntryRow | undefined;
    return row && entryOf(row);
  }

  #revision(): number {
    return Number(this.#database.prepare("SELECT revision FROM state").get()?.["revision"]);
  }
}

function entryOf({ key, value, created, modified }: EntryRow): Entry {
  return { key, value, createRevision: created, modRevision: modified };
}

function changeOf({ revision, key, value, created }: ChangeRow) {
  if (value === null) return { key, entry: undefined };
  return { key, entry: { key, value, createRevision: created, modRevision: revision } };
}
