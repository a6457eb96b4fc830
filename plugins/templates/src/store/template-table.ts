import type { DatabaseSync, SQLOutputValue } from "node:sqlite";
import type { TemplateRecord } from "../model/template-record.js";

/** The templates of all tenants. */
export class TemplateTable {
  readonly #statements: ReturnType<typeof prepare>;

  constructor(database: DatabaseSync) {
    this.#statements = prepare(database);
  }

  add({ id, owner, namespace, alias }: TemplateRecord, nowMs: number): void {
    this.#statements.add.run(id, owner, namespace, alias, nowMs, nowMs);
  }

  find(id: string): TemplateRecord | undefined {
    return one(this.#statements.find.get(id));
  }

  findOwn(owner: string, alias: string): TemplateRecord | undefined {
    return one(this.#statements.findOwn.get(owner, alias));
  }

  /** Those of a name with a namespace: two only when two tenants have the same namespace. */
  named(namespace: string, alias: string): readonly TemplateRecord[] {
    return this.#statements.named.all(namespace, alias).map(parse);
  }

  /** Those of a tenant, oldest first. */
  list(owner: string): readonly TemplateRecord[] {
    return this.#statements.list.all(owner).map(parse);
  }

  /** Those of all tenants, oldest first. */
  all(): readonly TemplateRecord[] {
    return this.#statements.all.all().map(parse);
  }

  count(owner: string): number {
    return Number(this.#statements.count.get(owner)?.["count"]);
  }

  publish(id: string, isPublic: boolean, nowMs: number): void {
    this.#statements.publish.run(Number(isPublic), nowMs, id);
  }

  touch(id: string, nowMs: number): void {
    this.#statements.touch.run(nowMs, id);
  }

  /** Counts a sandbox of it. Nothing happens for one that is not here. */
  spawned(id: string, nowMs: number): void {
    this.#statements.spawned.run(nowMs, id);
  }

  /** Removes it with its builds, their tags and logs. */
  remove(id: string): void {
    this.#statements.remove.run(id);
  }
}

function prepare(database: DatabaseSync) {
  return {
    add: database.prepare(
      "INSERT INTO template (id, owner, namespace, alias, created_at_ms, updated_at_ms) VALUES (?, ?, ?, ?, ?, ?)",
    ),
    find: database.prepare("SELECT * FROM template WHERE id = ?"),
    findOwn: database.prepare("SELECT * FROM template WHERE owner = ? AND alias = ?"),
    named: database.prepare("SELECT * FROM template WHERE namespace = ? AND alias = ?"),
    list: database.prepare("SELECT * FROM template WHERE owner = ? ORDER BY created_at_ms, id"),
    all: database.prepare("SELECT * FROM template ORDER BY created_at_ms, id"),
    count: database.prepare("SELECT count(*) AS count FROM template WHERE owner = ?"),
    publish: database.prepare("UPDATE template SET is_public = ?, updated_at_ms = ? WHERE id = ?"),
    touch: database.prepare("UPDATE template SET updated_at_ms = ? WHERE id = ?"),
    spawned: database.prepare(
      "UPDATE template SET spawn_count = spawn_count + 1, last_spawned_at_ms = ? WHERE id = ?",
    ),
    remove: database.prepare("DELETE FROM template WHERE id = ?"),
  };
}

function one(row: Record<string, SQLOutputValue> | undefined): TemplateRecord | undefined {
  return row && parse(row);
}

function parse(row: Record<string, SQLOutputValue>): TemplateRecord {
  const spawnedAtMs = row["last_spawned_at_ms"];
  return {
    id: String(row["id"]),
    owner: String(row["owner"]),
    namespace: String(row["namespace"]),
    alias: String(row["alias"]),
    isPublic: row["is_public"] === 1,
    createdAtMs: Number(row["created_at_ms"]),
    updatedAtMs: Number(row["updated_at_ms"]),
    spawnCount: Number(row["spawn_count"]),
    lastSpawnedAtMs: spawnedAtMs === null ? undefined : Number(spawnedAtMs),
  };
}
