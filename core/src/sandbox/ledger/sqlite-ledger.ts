import { FairRows } from "../../sqlite/fair-rows.js";
import { chmodSync, closeSync, existsSync, mkdirSync, openSync, statSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { z } from "zod";
import type { SandboxId, SnapshotId, VolumeId } from "../contract/backend.js";
import { BootError, messageOf, SandboxError } from "../../kernel/errors.js";
import { knownVersion, migrate, transaction, sqliteErrorCode } from "../../sqlite/open-database.js";
import { Table } from "../../sqlite/table.js";
import type { AddressLease } from "../contract/address-leases.js";
import {
  type EndedSandbox,
  endedSandbox,
  endReason,
  type Leaseholder,
  type LeaseRequest,
  type Ledger,
  type LedgerEntry,
  type LedgerNote,
} from "./ledger.js";
import { type SandboxRecord, sandboxRecord } from "../model/live-sandbox.js";
import { type SandboxEvent, sandboxEvent } from "../model/sandbox-event.js";
import { type SnapshotRecord, snapshotRecord } from "../model/snapshots.js";
import { type VolumeRecord, volumeRecord } from "../model/volumes.js";

export interface SqliteLedgerOptions {
  /** Directory of the file `ledger.sqlite`; made when missing, for this user alone. */
  readonly dataDir: string;
  /** Number of ended sandboxes whose records are kept. */
  readonly endedKept: number;
}

// Each entry migrates a ledger from that version to the next; `user_version` counts them.
const MIGRATIONS: readonly string[] = [
  `CREATE TABLE sandbox (
     id TEXT PRIMARY KEY,
     record TEXT NOT NULL,
     end_reason TEXT
   ) STRICT;
   CREATE TABLE ended_sandbox (
     sequence INTEGER PRIMARY KEY AUTOINCREMENT,
     id TEXT NOT NULL,
     backend TEXT NOT NULL,
     template TEXT NOT NULL,
     reason TEXT NOT NULL,
     started_at_ms REAL NOT NULL,
     ended_at_ms REAL NOT NULL
   ) STRICT;
   CREATE INDEX ended_sandbox_by_id ON ended_sandbox (id, sequence);`,
  // Records may hold a traffic access token. An older server would ignore it and open their ports.
  "",
  // Records may ask for a pause at their end. An older server would kill the sandbox.
  "",
  // Records belong to tenants. An older server would show every sandbox to everyone.
  "ALTER TABLE ended_sandbox ADD COLUMN owner TEXT NOT NULL DEFAULT 'default'",
  // Records may hold network rules. An older server would not enforce them.
  "",
  `CREATE TABLE snapshot (
     id TEXT PRIMARY KEY,
     record TEXT NOT NULL
   ) STRICT;`,
  "ALTER TABLE ended_sandbox ADD COLUMN access_token_digest TEXT",
  // An older server would ignore awaited events, and a newer one would deliver them too late.
  `CREATE TABLE awaited_event (
     sequence INTEGER PRIMARY KEY AUTOINCREMENT,
     id TEXT NOT NULL UNIQUE,
     sandbox TEXT NOT NULL,
     event TEXT NOT NULL
   ) STRICT;
   CREATE INDEX awaited_event_by_sandbox ON awaited_event (sandbox, sequence);
   CREATE TABLE outbox (
     sequence INTEGER PRIMARY KEY AUTOINCREMENT,
     id TEXT NOT NULL UNIQUE,
     event TEXT NOT NULL
   ) STRICT;`,
  // Sandboxes may have volumes. An older server would lose their mounts.
  `CREATE TABLE volume (
     id TEXT PRIMARY KEY,
     record TEXT NOT NULL
   ) STRICT;`,
  // Sandboxes may have leased addresses. An older server would assign them again.
  `CREATE TABLE address_lease (
     address TEXT PRIMARY KEY,
     network TEXT NOT NULL,
     holder TEXT NOT NULL
   ) STRICT;
   CREATE INDEX address_lease_by_holder ON address_lease (network, holder);`,
  // Paused sandboxes may have no processes. An older server would try to unfreeze them.
  "",
  // Sandboxes may have ended because of their disk. An older server could not read that reason.
  "",
  // Sandboxes may have the files of a build. An older server would start them anew without these.
  "",
  "CREATE INDEX IF NOT EXISTS ended_sandbox_by_owner ON ended_sandbox (owner, sequence)",
];

const FILE_NAME = "ledger.sqlite";
export const LOCK_NAME = "server.lock";
const SQLITE_BUSY = 5;
/** A backup has the file open, too, and keeps a checkpoint waiting. */
const BUSY_TIMEOUT_MS = 1000;
/** A full disk is rarely emptied sooner. */
const RETRY_AFTER_SECONDS = 5;

function tablesOf(database: DatabaseSync) {
  return {
    sandboxes: new Table(database, {
      name: "sandbox",
      schema: z.object({ id: z.string(), record: sandboxRecord, endReason: endReason.optional() }),
    }),
    snapshots: new Table(database, {
      name: "snapshot",
      schema: z.object({ id: z.string(), record: snapshotRecord }),
    }),
    volumes: new Table(database, {
      name: "volume",
      schema: z.object({ id: z.string(), record: volumeRecord }),
    }),
    awaited: new Table(database, {
      name: "awaited_event",
      schema: z.object({ id: z.string(), sandbox: z.string(), event: sandboxEvent }),
    }),
    outbox: new Table(database, {
      name: "outbox",
      schema: z.object({ id: z.string(), event: sandboxEvent }),
    }),
    ended: new Table(database, { name: "ended_sandbox", schema: endedSandbox }),
    leases: new Table(database, {
      name: "address_lease",
      schema: z.object({ address: z.string(), network: z.string(), holder: z.string() }),
    }),
  };
}

type Tables = ReturnType<typeof tablesOf>;

/**
 * The ledger in one SQLite file, which a backup may read meanwhile. A lock beside it keeps a second server off the data
 * directory; it ends with the process, however that ends.
 */
export class SqliteLedger implements Ledger {
  readonly #options: SqliteLedgerOptions;
  #opened:
    | {
        readonly database: DatabaseSync;
        readonly lock: DatabaseSync;
        readonly tables: Tables;
        readonly endedRows: FairRows;
        /** Inode of the file: another file in its place is not the ledger. */
        readonly inode: number;
      }
    | undefined;

  constructor(options: SqliteLedgerOptions) {
    this.#options = options;
  }

  /**
   * Opens the ledger, or creates it. An existing file is never replaced.
   * @throws BootError that names the file: in use, unreadable, damaged or from a newer version.
   */
  async open(): Promise<void> {
    const { database, lock } = openDatabase(this.#options.dataDir, this.#path);
    const most = this.#options.endedKept;
    const endedRows = new FairRows(database, {
      table: "ended_sandbox",
      owner: "owner",
      sequence: "sequence",
      most,
    });
    this.#opened = { database, lock, tables: tablesOf(database), endedRows, inode: statSync(this.#path).ino };
  }

  async entries(): Promise<readonly LedgerEntry[]> {
    return this.#read(({ sandboxes, awaited }) =>
      sandboxes.all().map(({ record, endReason }) => {
        const events = awaited.all({ sandbox: record.id }, { by: "sequence" });
        return { record, endReason, awaited: events.map(({ event }) => event) };
      }),
    );
  }

  async write(record: SandboxRecord, note: LedgerNote = {}): Promise<void> {
    const { endReason, happened, awaited, withdrawn } = note;
    const { id } = record;
    const write = (tables: Tables): void => {
      tables.sandboxes.put({ id, record, endReason });
      this.#tell(happened);
      if (awaited !== undefined) tables.awaited.insert({ id: awaited.id, sandbox: id, event: awaited });
      if (withdrawn !== undefined) tables.awaited.remove({ id: withdrawn });
    };
    if ((happened ?? awaited ?? withdrawn) === undefined) this.#written(write);
    else this.#atOnce(write);
  }

  async remove(id: SandboxId): Promise<void> {
    this.#atOnce(({ sandboxes, awaited }) => {
      sandboxes.remove({ id });
      awaited.remove({ sandbox: id });
    });
  }

  async end(record: EndedSandbox, happened?: SandboxEvent): Promise<void> {
    const { id, owner } = record;
    this.#atOnce(({ sandboxes, awaited, ended }) => {
      sandboxes.remove({ id });
      awaited.remove({ sandbox: id });
      ended.insert(record);
      this.#open.endedRows.added(owner);
      this.#tell(happened);
    });
  }

  async findEnded(id: SandboxId): Promise<EndedSandbox | undefined> {
    return this.#open.tables.ended.all({ id }, { by: "sequence DESC", limit: 1 })[0];
  }

  async snapshots(): Promise<readonly SnapshotRecord[]> {
    return this.#read(({ snapshots }) => snapshots.all().map(({ record }) => record));
  }

  async writeSnapshot(record: SnapshotRecord, happened?: SandboxEvent): Promise<void> {
    this.#atOnce(({ snapshots }) => {
      snapshots.put({ id: record.id, record });
      this.#tell(happened);
    });
  }

  async removeSnapshot(id: SnapshotId): Promise<void> {
    this.#written(({ snapshots }) => snapshots.remove({ id }));
  }

  async confirm(event: SandboxEvent): Promise<void> {
    this.#atOnce(({ awaited }) => {
      if (awaited.remove({ id: event.id }) > 0) this.#tell(event);
    });
  }

  async tell(event: SandboxEvent): Promise<void> {
    this.#atOnce(() => this.#tell(event));
  }

  async outbox(limit: number): Promise<readonly SandboxEvent[]> {
    return this.#open.tables.outbox.all({}, { by: "sequence", limit }).map(({ event }) => event);
  }

  async clearOutbox(ids: readonly string[]): Promise<void> {
    this.#atOnce(({ outbox }) => outbox.remove({ id: ids }));
  }

  async trimOutbox(most: number): Promise<number> {
    return this.#written(({ outbox }) =>
      outbox.run(
        `DELETE FROM outbox
         WHERE sequence <= (SELECT sequence FROM outbox ORDER BY sequence DESC LIMIT 1 OFFSET ?)`,
        most,
      ),
    );
  }

  async volumes(): Promise<readonly VolumeRecord[]> {
    return this.#read(({ volumes }) => volumes.all().map(({ record }) => record));
  }

  async writeVolume(record: VolumeRecord): Promise<void> {
    this.#written(({ volumes }) => volumes.put({ id: record.id, record }));
  }

  async removeVolume(id: VolumeId): Promise<void> {
    this.#written(({ volumes }) => volumes.remove({ id }));
  }

  async leases(network: string): Promise<readonly AddressLease[]> {
    return this.#read(({ leases }) =>
      leases.all({ network }).map(({ address, holder }) => ({ address, holder })),
    );
  }

  async leasedTo({ network, holder }: Leaseholder): Promise<readonly string[]> {
    return this.#open.tables.leases.all({ network, holder }).map(({ address }) => address);
  }

  async isLeased(address: string): Promise<boolean> {
    return this.#open.tables.leases.has({ address });
  }

  async lease({ network, holder, addresses }: LeaseRequest): Promise<string | undefined> {
    return this.#atOnce(({ leases }) =>
      addresses.find((address) => leases.insert({ address, network, holder }, "INSERT OR IGNORE")),
    );
  }

  async endLeases({ network, holder }: Leaseholder): Promise<void> {
    this.#written(({ leases }) => leases.remove({ network, holder }));
  }

  /** Writes the current version, which a full or failing disk refuses like any other write. */
  async check(): Promise<void> {
    const { database } = this.#open;
    this.#checkPlace();
    database.exec(`PRAGMA user_version = ${MIGRATIONS.length}`);
  }

  async close(): Promise<void> {
    this.#opened?.database.close();
    this.#opened?.lock.close();
    this.#opened = undefined;
  }

  /** @throws BootError that names the file when its contents are invalid. */
  #read<T>(run: (tables: Tables) => T): T {
    try {
      return run(this.#open.tables);
    } catch (error) {
      throw new BootError([{ message: refusal(this.#path, error) }], { cause: error });
    }
  }

  #tell(happened: SandboxEvent | undefined): void {
    if (happened !== undefined) this.#open.tables.outbox.insert({ id: happened.id, event: happened });
  }

  #atOnce<T>(run: (tables: Tables) => T): T {
    const { database } = this.#open;
    return this.#written((tables) => transaction(database, () => run(tables)));
  }

  /** @throws SandboxError unavailable when a write of `run` fails. */
  #written<T>(run: (tables: Tables) => T): T {
    const { tables } = this.#open;
    try {
      this.#checkPlace();
      return run(tables);
    } catch (error) {
      const options = { cause: error, retryAfterSeconds: RETRY_AFTER_SECONDS };
      throw new SandboxError("store_unavailable", "the server cannot write its ledger now", options);
    }
  }

  /** SQLite goes on writing into a deleted file, which cannot be opened again. */
  #checkPlace(): void {
    const found = statSync(this.#path, { throwIfNoEntry: false })?.ino;
    if (found === this.#open.inode) return;
    const what = found === undefined ? "is gone" : "is another file than the one that was opened";
    throw new Error(`the ledger ${this.#path} ${what}: restart the server`);
  }

  get #path(): string {
    return join(this.#options.dataDir, FILE_NAME);
  }

  get #open() {
    if (this.#opened === undefined) throw new Error("the ledger is not open");
    return this.#opened;
  }
}

/**
 * Reason why a server could not open the ledger of a data directory now: in use, unreadable, damaged or from a newer
 * version. Undefined when it could open or create one. Changes nothing.
 */
export function reasonLedgerUnusable(dataDir: string): string | undefined {
  const path = join(dataDir, FILE_NAME);
  if (!existsSync(path)) return undefined;
  let lock: DatabaseSync | undefined;
  let database: DatabaseSync | undefined;
  try {
    if (existsSync(join(dataDir, LOCK_NAME))) lock = takeLock(dataDir);
    database = new DatabaseSync(path);
    database.exec("BEGIN IMMEDIATE; ROLLBACK");
    checkPages(database);
    knownVersion(database, MIGRATIONS.length);
    return undefined;
  } catch (error) {
    return refusal(path, error);
  } finally {
    database?.close();
    lock?.close();
  }
}

/**
 * Keeps servers off a data directory until it is closed or the process ends.
 * @throws Error of SQLite, SQLITE_BUSY while another one has it.
 */
export function takeLock(dataDir: string): DatabaseSync {
  const path = join(dataDir, LOCK_NAME);
  // Not opened when it exists: closing any descriptor would drop the lock of another ledger of this process.
  if (!existsSync(path)) closeSync(openSync(path, "a", 0o600));
  // Used only for its lock: Node has none for files.
  const lock = new DatabaseSync(path, { timeout: 0 });
  try {
    lock.exec("BEGIN EXCLUSIVE");
    return lock;
  } catch (error) {
    lock.close();
    throw error;
  }
}

function openDatabase(
  dataDir: string,
  path: string,
): { readonly database: DatabaseSync; readonly lock: DatabaseSync } {
  let lock: DatabaseSync | undefined;
  let database: DatabaseSync | undefined;
  try {
    mkdirSync(dataDir, { recursive: true, mode: 0o700 });
    lock = takeLock(dataDir);
    // Not opened when it exists: closing any descriptor would drop the locks of another connection of this process.
    if (!existsSync(path)) closeSync(openSync(path, "a", 0o600));
    chmodSync(path, 0o600);
    database = new DatabaseSync(path, { timeout: BUSY_TIMEOUT_MS });
    database.exec("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL");
    database.exec("PRAGMA foreign_keys = ON");
    checkPages(database);
    migrate(database, MIGRATIONS);
    return { database, lock };
  } catch (error) {
    database?.close();
    lock?.close();
    throw new BootError([{ message: refusal(path, error) }], { cause: error });
  }
}

function checkPages(database: DatabaseSync): void {
  const [finding] = Object.values(database.prepare("PRAGMA quick_check(1)").get() ?? {});
  if (finding !== "ok") throw new Error(`it is damaged (${String(finding)})`);
}

function refusal(path: string, error: unknown): string {
  if (sqliteErrorCode(error) === SQLITE_BUSY) {
    return `the ledger ${path} is in use: another server runs on this data directory, stop it first`;
  }
  return `cannot use the ledger ${path}: ${messageOf(error)}. Restore it from a backup, or move it away to start without its sandboxes`;
}
