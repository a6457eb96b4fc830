import type { DatabaseSync, StatementSync } from "node:sqlite";
import { fairShare } from "../bounds/tenants.js";

/** A table whose rows belong to owners. The names are put into SQL; `(owner, kind, sequence)` should be an index. */
export interface FairRowsOptions {
  readonly table: string;
  /** Column of the owner. Rows without one are not counted. */
  readonly owner: string;
  /** Expression for the kind of a row: the kinds of an owner share what it has. One for all when absent. */
  readonly kind?: string;
  /** Column that increases from row to row. */
  readonly sequence: string;
  /** Most rows of all owners together. */
  readonly most: number;
}

/** Rows that go at once: one by one would double the cost of writing, and many would hold up the server. */
const MOST_AT_ONCE = 64;
const ANY = "''";

/**
 * Keeps a table to a number of rows. The oldest of the owner with the most go first, and of those the oldest of its most
 * frequent kind: none can displace another's, nor rare rows of its own by many of another kind.
 */
export class FairRows {
  readonly #most: number;
  readonly #counts = new Map<string, Map<string, number>>();
  readonly #remove: StatementSync;
  #total = 0;

  constructor(database: DatabaseSync, { table, owner, kind = ANY, sequence, most }: FairRowsOptions) {
    this.#most = most;
    const own = `${owner} = :owner AND ${kind} = :kind`;
    this.#remove = database.prepare(
      `DELETE FROM ${table} WHERE ${own} AND ${sequence} <=
         (SELECT ${sequence} FROM ${table} WHERE ${own} ORDER BY ${sequence} DESC LIMIT 1 OFFSET :kept)`,
    );
    const counts = database.prepare(
      `SELECT ${owner} AS owner, ${kind} AS kind, count(*) AS count FROM ${table}
       WHERE ${owner} IS NOT NULL GROUP BY 1, 2`,
    );
    for (const row of counts.all())
      this.#change(String(row["owner"]), String(row["kind"]), Number(row["count"]));
  }

  /** To be called after a row was added, in its transaction. */
  added(owner: string, kind = ""): void {
    this.#change(owner, kind, 1);
    const slack = Math.min(MOST_AT_ONCE, Math.floor(this.#most / MOST_AT_ONCE));
    if (this.#total > this.#most + slack) this.#trim();
  }

  /** To be called after a row was removed. */
  removed(owner: string, kind = ""): void {
    this.#change(owner, kind, -1);
  }

  #trim(): void {
    const totals = new Map([...this.#counts].map(([owner, kinds]) => [owner, sum(kinds.values())]));
    const share = Math.floor(fairShare(totals.values(), this.#most));
    for (const [owner, kinds] of this.#counts) {
      if ((totals.get(owner) ?? 0) <= share) continue;
      const kept = Math.floor(fairShare(kinds.values(), share));
      for (const [kind, count] of kinds) {
        if (count <= kept) continue;
        this.#change(owner, kind, -Number(this.#remove.run({ owner, kind, kept }).changes));
      }
    }
  }

  #change(owner: string, kind: string, by: number): void {
    this.#total += by;
    const kinds = this.#counts.get(owner) ?? new Map<string, number>();
    this.#counts.set(owner, kinds);
    const count = (kinds.get(kind) ?? 0) + by;
    if (count > 0) kinds.set(kind, count);
    else kinds.delete(kind);
    if (kinds.size === 0) this.#counts.delete(owner);
  }
}

function sum(counts: Iterable<number>): number {
  let total = 0;
  for (const count of counts) total += count;
  return total;
}
