import { chmodSync, closeSync, existsSync, mkdirSync, openSync, statSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync, type StatementSync } from "node:sqlite";
import { z } from "zod";
import type { SandboxId, SnapshotId, VolumeId } from "../contract/backend.js";
import { BootError, messageOf, SandboxError } from "../../kernel/errors.js";
import { knownVersion, migrate } from "../../sqlite/migrate.js";
import { transaction } from "../../sqlite/transaction.js";
import { sqliteErrorCode } from "../../sqlite/sqlite-error-code.js";
import type { AddressLease } from "../contract/address-leases.js";
import type { EndedSandbox, Leaseholder, LeaseRequest, Ledger, LedgerEntry, LedgerNote } from "./ledger.js";
import { END_REASONS } from "../model/describe-end.js";
import type { EndReason, SandboxRecord } from "../model/live-sandbox.js";
import type { SandboxEvent } from "../model/sandbox-event.js";
import type { SnapshotRecord } from "../model/snapshots.js";
import { DEFAULT_TENANT } from "../model/tenant.js";
import type { VolumeRecord } from "../model/volumes.js";

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
];

const FILE_NAME = "ledger.sqlite";
const SQLITE_BUSY = 5;
/** A full disk is rarely emptied sooner. */
const RETRY_AFTER_SECONDS = 5;

const endReason = z.enum(Object.keys(END_REASONS) as EndReason[]);
const text = z.record(z.string(), z.string());

const egress = z.object({ allowOut: z.array(z.string()), denyOut: z.array(z.string()) });

const limits = z.object({
  cpuCount: z.number().optional(),
  memoryMiB: z.number().optional(),
  diskMiB: z.number().optional(),
  processes: z.number().optional(),
});

const build = z.object({
  id: z.string(),
  image: z.object({ id: z.string(), user: z.string(), workdir: z.string().optional() }),
  limits,
  start: z
    .object({
      command: z.string(),
      ready: z.string().optional(),
      user: z.string(),
      workdir: z.string().optional(),
      environment: text,
      ports: z.array(z.number()),
    })
    .transform((start) => ({ ready: undefined, workdir: undefined, ...start }))
    .optional(),
});

/** Fields of a sandbox that JSON leaves out. */
const ABSENT = {
  snapshot: undefined,
  endsAtMs: undefined,
  timeoutMs: undefined,
  accessToken: undefined,
  trafficAccessToken: undefined,
  maskRequestHost: undefined,
  egress: undefined,
};

const sandboxRecord = z
  .object({
    id: z.string(),
    // Absent in records from before tenants.
    owner: z.string().default(DEFAULT_TENANT),
    backend: z.string(),
    template: z.string(),
    build: build.optional(),
    snapshot: z.string().optional(),
    state: z.enum(["creating", "running", "paused", "killing"]),
    startedAtMs: z.number(),
    endsAtMs: z.number().optional(),
    timeoutMs: z.number().optional(),
    onTimeout: z.enum(["kill", "pause"]).default("kill"),
    keepsMemory: z.boolean().optional(),
    isStopped: z.boolean().optional(),
    autoResume: z.boolean().default(false),
    metadata: text,
    environment: text,
    accessToken: z.string().optional(),
    trafficAccessToken: z.string().optional(),
    maskRequestHost: z.string().optional(),
    limits,
    isResizing: z.boolean().optional(),
    idempotency: z.object({ key: z.string(), fingerprint: z.string() }).optional(),
    allowInternetAccess: z.boolean(),
    egress: egress.optional(),
    mounts: z
      .array(z.object({ volume: z.string(), name: z.string(), path: z.string(), readOnly: z.boolean() }))
      .default([]),
  })
  .transform((record) => ({ ...ABSENT, ...record }));

const snapshotRecord = z
  .object({
    id: z.string(),
    owner: z.string(),
    state: z.enum(["taking", "ready", "removing"]),
    name: z.string().optional(),
    isTemporary: z.boolean().default(false),
    backend: z.string(),
    template: z.string(),
    build: build.optional(),
    sandboxId: z.string(),
    takenAtMs: z.number(),
    limits,
  })
  .transform((record) => ({ name: undefined, ...record }));

const sandboxEvent = z
  .object({
    id: z.string(),
    type: z.enum(["created", "updated", "paused", "resumed", "snapshotted", "killed"]),
    atMs: z.number(),
    sandboxId: z.string(),
    owner: z.string(),
    template: z.string(),
    build: z.string().optional(),
    snapshot: z.string().optional(),
    metadata: text,
    detail: z.object({
      reason: z.string().optional(),
      endsAtMs: z.number().optional(),
      network: egress.extend({ allowInternetAccess: z.boolean() }).optional(),
      limits: limits.optional(),
      snapshot: z.string().optional(),
      name: z.string().optional(),
    }),
  })
  .transform((event) => ({ snapshot: undefined, ...event }));

const volumeRecord = z.object({
  id: z.string(),
  owner: z.string(),
  state: z.enum(["making", "ready", "removing"]),
  name: z.string(),
  backend: z.string(),
  sizeMiB: z.number(),
  token: z.string(),
  createdAtMs: z.number(),
});

const addressLease = z.object({ address: z.string(), holder: z.string() });

const endedSandbox = z.object({
  id: z.string(),
  owner: z.string(),
  backend: z.string(),
  template: z.string(),
  reason: endReason,
  startedAtMs: z.number(),
  endedAtMs: z.number(),
  accessTokenDigest: z
    .string()
    .nullable()
    .transform((digest) => digest ?? undefined),
});

/**
 * The ledger in one SQLite file. The file stays locked while it is open, so a second server on the same data directory
 * is refused; the lock ends with the process, however that ends.
 */
export class SqliteLedger implements Ledger {
  readonly #options: SqliteLedgerOptions;
  #opened:
    | {
        readonly database: DatabaseSync;
        readonly statements: Statements;
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
    const database = openDatabase(this.#options.dataDir, this.#path);
    this.#opened = { database, statements: prepare(database), inode: statSync(this.#path).ino };
  }

  async entries(): Promise<readonly LedgerEntry[]> {
    return this.#read(({ entries, awaited }) =>
      entries.all().map((row) => {
        const record = parseJson(sandboxRecord, row["record"]);
        return {
          record,
          endReason: endReason.nullable().parse(row["end_reason"]) ?? undefined,
          awaited: awaited.all(record.id).map(({ event }) => parseJson(sandboxEvent, event)),
        };
      }),
    );
  }

  async write(record: SandboxRecord, note: LedgerNote = {}): Promise<void> {
    const { endReason, happened, awaited, withdrawn } = note;
    const write = (statements: Statements): void => {
      statements.write.run(record.id, JSON.stringify(record), endReason ?? null);
      this.#tell(happened);
      if (awaited !== undefined) statements.await.run(awaited.id, record.id, JSON.stringify(awaited));
      if (withdrawn !== undefined) statements.withdraw.run(withdrawn);
    };
    if ((happened ?? awaited ?? withdrawn) === undefined) this.#written(write);
    else this.#atOnce(write);
  }

  async remove(id: SandboxId): Promise<void> {
    this.#atOnce((statements) => {
      statements.remove.run(id);
      statements.withdrawAll.run(id);
    });
  }

  async end(ended: EndedSandbox, happened?: SandboxEvent): Promise<void> {
    const { id, owner, backend, template, reason, startedAtMs, endedAtMs } = ended;
    this.#atOnce((statements) => {
      statements.remove.run(id);
      statements.withdrawAll.run(id);
      const digest = ended.accessTokenDigest ?? null;
      statements.end.run(id, owner, backend, template, reason, startedAtMs, endedAtMs, digest);
      statements.forget.run(this.#options.endedKept);
      this.#tell(happened);
    });
  }

  async findEnded(id: SandboxId): Promise<EndedSandbox | undefined> {
    const row = this.#open.statements.findEnded.get(id);
    return row === undefined ? undefined : endedSandbox.parse(row);
  }

  async snapshots(): Promise<readonly SnapshotRecord[]> {
    return this.#read(({ snapshots }) =>
      snapshots.all.all().map((row) => parseJson(snapshotRecord, row["record"])),
    );
  }

  async writeSnapshot(record: SnapshotRecord, happened?: SandboxEvent): Promise<void> {
    this.#atOnce(({ snapshots }) => {
      snapshots.write.run(record.id, JSON.stringify(record));
      this.#tell(happened);
    });
  }

  async removeSnapshot(id: SnapshotId): Promise<void> {
    this.#written(({ snapshots }) => snapshots.remove.run(id));
  }

  async confirm(event: SandboxEvent): Promise<void> {
    this.#atOnce(({ withdraw }) => {
      const { changes } = withdraw.run(event.id);
      if (changes > 0) this.#tell(event);
    });
  }

  async outbox(limit: number): Promise<readonly SandboxEvent[]> {
    return this.#open.statements.outbox.all(limit).map(({ event }) => parseJson(sandboxEvent, event));
  }

  async clearOutbox(ids: readonly string[]): Promise<void> {
    this.#atOnce(({ clear }) => {
      for (const id of ids) clear.run(id);
    });
  }

  async trimOutbox(most: number): Promise<number> {
    return this.#written(({ trim }) => Number(trim.run(most).changes));
  }

  async volumes(): Promise<readonly VolumeRecord[]> {
    return this.#read(({ volumes }) =>
      volumes.all.all().map((row) => parseJson(volumeRecord, row["record"])),
    );
  }

  async writeVolume(record: VolumeRecord): Promise<void> {
    this.#written(({ volumes }) => volumes.write.run(record.id, JSON.stringify(record)));
  }

  async removeVolume(id: VolumeId): Promise<void> {
    this.#written(({ volumes }) => volumes.remove.run(id));
  }

  async leases(network: string): Promise<readonly AddressLease[]> {
    return this.#read(({ leases }) => leases.all(network).map((row) => addressLease.parse(row)));
  }

  async leasedTo({ network, holder }: Leaseholder): Promise<readonly string[]> {
    const { leasedTo } = this.#open.statements;
    return leasedTo.all(network, holder).map(({ address }) => String(address));
  }

  async isLeased(address: string): Promise<boolean> {
    return this.#open.statements.isLeased.get(address) !== undefined;
  }

  async lease({ network, holder, addresses }: LeaseRequest): Promise<string | undefined> {
    return this.#atOnce(({ lease }) =>
      addresses.find((address) => lease.run(address, network, holder).changes > 0),
    );
  }

  async endLeases({ network, holder }: Leaseholder): Promise<void> {
    this.#written(({ endLeases }) => endLeases.run(network, holder));
  }

  /** Writes the current version, which a full or failing disk refuses like any other write. */
  async check(): Promise<void> {
    const { database } = this.#open;
    this.#checkPlace();
    database.exec(`PRAGMA user_version = ${MIGRATIONS.length}`);
  }

  async close(): Promise<void> {
    this.#opened?.database.close();
    this.#opened = undefined;
  }

  /** @throws BootError that names the file when its contents are invalid. */
  #read<T>(run: (statements: Statements) => T): T {
    try {
      return run(this.#open.statements);
    } catch (error) {
      throw new BootError([{ message: refusal(this.#path, error) }], { cause: error });
    }
  }

  #tell(happened: SandboxEvent | undefined): void {
    if (happened !== undefined) this.#open.statements.happened.run(happened.id, JSON.stringify(happened));
  }

  #atOnce<T>(run: (statements: Statements) => T): T {
    const { database } = this.#open;
    return this.#written((statements) => transaction(database, () => run(statements)));
  }

  /** @throws SandboxError unavailable when a write of `run` fails. */
  #written<T>(run: (statements: Statements) => T): T {
    const { statements } = this.#open;
    try {
      this.#checkPlace();
      return run(statements);
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
  let database: DatabaseSync | undefined;
  try {
    database = new DatabaseSync(path);
    database.exec("PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE; ROLLBACK");
    checkPages(database);
    knownVersion(database, MIGRATIONS.length);
    return undefined;
  } catch (error) {
    return refusal(path, error);
  } finally {
    database?.close();
  }
}

function parseJson<T>(schema: z.ZodType<T>, json: unknown): T {
  return schema.parse(JSON.parse(String(json)));
}

type Statements = ReturnType<typeof prepare>;

function prepare(database: DatabaseSync) {
  const sql = (text: string): StatementSync => database.prepare(text);
  const recordsOf = (table: "snapshot" | "volume") => ({
    all: sql(`SELECT record FROM ${table}`),
    write: sql(
      `INSERT INTO ${table} (id, record) VALUES (?, ?)
       ON CONFLICT (id) DO UPDATE SET record = excluded.record`,
    ),
    remove: sql(`DELETE FROM ${table} WHERE id = ?`),
  });
  return {
    snapshots: recordsOf("snapshot"),
    volumes: recordsOf("volume"),
    entries: sql("SELECT record, end_reason FROM sandbox"),
    write: sql(
      `INSERT INTO sandbox (id, record, end_reason) VALUES (?, ?, ?)
       ON CONFLICT (id) DO UPDATE SET record = excluded.record, end_reason = excluded.end_reason`,
    ),
    remove: sql("DELETE FROM sandbox WHERE id = ?"),
    awaited: sql("SELECT event FROM awaited_event WHERE sandbox = ? ORDER BY sequence"),
    await: sql("INSERT INTO awaited_event (id, sandbox, event) VALUES (?, ?, ?)"),
    withdraw: sql("DELETE FROM awaited_event WHERE id = ?"),
    withdrawAll: sql("DELETE FROM awaited_event WHERE sandbox = ?"),
    happened: sql("INSERT INTO outbox (id, event) VALUES (?, ?)"),
    outbox: sql("SELECT event FROM outbox ORDER BY sequence LIMIT ?"),
    clear: sql("DELETE FROM outbox WHERE id = ?"),
    trim: sql(
      `DELETE FROM outbox
       WHERE sequence <= (SELECT sequence FROM outbox ORDER BY sequence DESC LIMIT 1 OFFSET ?)`,
    ),
    leases: sql("SELECT address, holder FROM address_lease WHERE network = ?"),
    leasedTo: sql("SELECT address FROM address_lease WHERE network = ? AND holder = ?"),
    isLeased: sql("SELECT 1 FROM address_lease WHERE address = ?"),
    lease: sql(
      `INSERT INTO address_lease (address, network, holder) VALUES (?, ?, ?)
       ON CONFLICT (address) DO NOTHING`,
    ),
    endLeases: sql("DELETE FROM address_lease WHERE network = ? AND holder = ?"),
    end: sql(
      `INSERT INTO ended_sandbox (id, owner, backend, template, reason, started_at_ms, ended_at_ms, access_token_digest)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
    ),
    forget: sql("DELETE FROM ended_sandbox WHERE sequence <= (SELECT max(sequence) FROM ended_sandbox) - ?"),
    findEnded: sql(
      `SELECT id, owner, backend, template, reason, started_at_ms AS startedAtMs, ended_at_ms AS endedAtMs,
              access_token_digest AS accessTokenDigest
       FROM ended_sandbox WHERE id = ? ORDER BY sequence DESC LIMIT 1`,
    ),
  };
}

function openDatabase(dataDir: string, path: string): DatabaseSync {
  let database: DatabaseSync | undefined;
  try {
    mkdirSync(dataDir, { recursive: true, mode: 0o700 });
    // Not opened when it exists: closing any descriptor would drop the lock of another ledger of this process.
    if (!existsSync(path)) closeSync(openSync(path, "a", 0o600));
    chmodSync(path, 0o600);
    database = new DatabaseSync(path);
    // Exclusive before the first read: the lock is then taken with it and kept until close.
    database.exec("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL");
    database.exec("PRAGMA foreign_keys = ON");
    checkPages(database);
    migrate(database, MIGRATIONS);
    return database;
  } catch (error) {
    database?.close();
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
  const reason = error instanceof z.ZodError ? z.prettifyError(error) : messageOf(error);
  return `cannot use the ledger ${path}: ${reason}. Restore it from a backup, or move it away to start without its sandboxes`;
}
