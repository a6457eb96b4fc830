import type { DatabaseSync, SQLInputValue, SQLOutputValue, StatementSync } from "node:sqlite";
import { z } from "zod";
import { messageOf } from "../kernel/errors.js";

/** A value that its holder only reads. */
type Immutable<T> = T extends object ? { readonly [Key in keyof T]: Immutable<T[Key]> } : T;

/** What a schema describes. */
export type Inferred<Schema extends z.ZodType> = Immutable<z.output<Schema>>;

/** What a schema takes: fields with a default may be absent. */
type InferredInput<Schema extends z.ZodType> = Immutable<z.input<Schema>>;

const statements = new WeakMap<DatabaseSync, Map<string, StatementSync>>();

/** A statement of an open file, prepared at its first use: `sql` comes from code, values go into its parameters. */
function prepared(database: DatabaseSync, sql: string): StatementSync {
  let known = statements.get(database);
  if (known === undefined) statements.set(database, (known = new Map()));
  let statement = known.get(sql);
  if (statement === undefined) known.set(sql, (statement = database.prepare(sql)));
  return statement;
}

/** Values of a field: this one, one of a list, none where it is undefined, or those that compare so. */
type Condition<T> =
  | T
  | readonly T[]
  | undefined
  | { readonly [Operator in keyof typeof OPERATORS]?: T | undefined };

/** Conditions on fields, which all hold. */
type Where<Schema extends z.ZodObject> = {
  readonly [Field in keyof Inferred<Schema>]?: Condition<Inferred<Schema>[Field]>;
};

interface TableOptions<Schema extends z.ZodObject> {
  readonly name: string;
  /** Booleans are stored as 0 and 1, objects and lists as JSON, and undefined as NULL. */
  readonly schema: Schema;
  /** Columns that are not named as their fields in snake case. */
  readonly columns?: { readonly [Field in keyof Inferred<Schema>]?: string };
}

interface Selection {
  /** Terms of `ORDER BY`. */
  readonly by?: string;
  readonly limit?: number | undefined;
  readonly offset?: number | undefined;
}

const OPERATORS = {
  "<": (column: string) => `${column} < ?`,
  "<=": (column: string) => `${column} <= ?`,
  ">": (column: string) => `${column} > ?`,
  ">=": (column: string) => `${column} >= ?`,
  "not": (column: string) => `${column} IS NOT ?`,
  "starts": (column: string) => `instr(${column}, ?) = 1`,
};

interface Column {
  readonly name: string;
  readonly kind: "plain" | "boolean" | "json";
}

/**
 * A table of an SQLite file, made by the file's migrations. Its zod schema names the fields of a row: others are not stored,
 * and to read a row that does not fit is an Error. Each statement is prepared once; SQL comes from code alone, values go into its parameters.
 */
export class Table<Schema extends z.ZodObject> {
  readonly #database: DatabaseSync;
  readonly #name: string;
  readonly #schema: Schema;
  readonly #columns = new Map<string, Column>();
  readonly #put: string;
  /** SQL by verb and columns with a value: making it takes longer than a step of SQLite. */
  readonly #insertions = new Map<string, string>();

  constructor(database: DatabaseSync, { name, schema, columns = {} }: TableOptions<Schema>) {
    this.#database = database;
    this.#name = name;
    this.#schema = schema;
    const names: Readonly<Record<string, string | undefined>> = columns;
    for (const [field, type] of Object.entries(schema.shape))
      this.#columns.set(field, { name: names[field] ?? snakeCase(field), kind: kindOf(type) });
    const all = [...this.#columns.values()].map((column) => column.name);
    const changes = all.map((column) => `${column} = excluded.${column}`);
    this.#put = `${this.#insertion("INSERT", all)} ON CONFLICT (id) DO UPDATE SET ${changes.join(", ")}`;
  }

  get(where: Where<Schema>): Inferred<Schema> | undefined {
    return this.all(where, { limit: 1 })[0];
  }

  has(where: Where<Schema>): boolean {
    const [filter, values] = this.#filter(where);
    return this.query(`SELECT 1 FROM ${this.#name} ${filter} LIMIT 1`, ...values).length > 0;
  }

  count(where: Where<Schema> = {}): number {
    const [filter, values] = this.#filter(where);
    return Number(
      this.query(`SELECT count(*) AS count FROM ${this.#name} ${filter}`, ...values)[0]?.["count"],
    );
  }

  /** Sum of a field; 0 without rows. */
  sum(field: keyof Inferred<Schema> & string, where: Where<Schema> = {}): number {
    const [filter, values] = this.#filter(where);
    return Number(
      this.query(`SELECT sum(${this.#column(field)}) AS sum FROM ${this.#name} ${filter}`, ...values)[0]?.[
        "sum"
      ],
    );
  }

  all(where: Where<Schema> = {}, { by, limit = -1, offset = 0 }: Selection = {}): Inferred<Schema>[] {
    const [filter, values] = this.#filter(where);
    const order = by === undefined ? "" : `ORDER BY ${by}`;
    return this.select(`${filter} ${order} LIMIT ? OFFSET ?`, ...values, limit, offset);
  }

  /** Selects rows by the end of a statement, which may join other tables. */
  select(end: string, ...values: readonly SQLInputValue[]): Inferred<Schema>[] {
    const rows = this.query(`SELECT ${this.#name}.* FROM ${this.#name} ${end}`, ...values);
    return rows.map((row) => this.#parse(row));
  }

  /** Inserts a row. A field without a value has its column's default. @returns false when a row was in its way. */
  insert(row: InferredInput<Schema>, verb: "INSERT" | "INSERT OR IGNORE" | "REPLACE" = "INSERT"): boolean {
    const given: Readonly<Record<string, unknown>> = row;
    const names: string[] = [];
    const values: SQLInputValue[] = [];
    let key: string = verb;
    for (const [field, { name }] of this.#columns) {
      const value = given[field];
      key += value === undefined ? "-" : "+";
      if (value === undefined) continue;
      names.push(name);
      values.push(stored(value));
    }
    let sql = this.#insertions.get(key);
    if (sql === undefined) this.#insertions.set(key, (sql = this.#insertion(verb, names)));
    return this.run(sql, ...values) > 0;
  }

  /** Inserts a row, or replaces all that the one with its `id` has. */
  put(row: Inferred<Schema>): void {
    const given: Readonly<Record<string, unknown>> = row;
    this.run(this.#put, ...Array.from(this.#columns.keys(), (field) => stored(given[field])));
  }

  /** @returns how many rows there were. */
  update(where: Where<Schema>, changes: Partial<Inferred<Schema>>): number {
    const [filter, values] = this.#filter(where);
    const given: Readonly<Record<string, unknown>> = changes;
    const fields = [...this.#columns].filter(([field]) => field in given);
    const set = fields.map(([, { name }]) => `${name} = ?`).join(", ");
    const changed = fields.map(([field]) => stored(given[field]));
    return this.run(`UPDATE ${this.#name} SET ${set} ${filter}`, ...changed, ...values);
  }

  /** @returns how many rows there were. */
  remove(where: Where<Schema>): number {
    const [filter, values] = this.#filter(where);
    return this.run(`DELETE FROM ${this.#name} ${filter}`, ...values);
  }

  /** Rows of any query, as SQLite has them. */
  query(sql: string, ...values: readonly SQLInputValue[]): Record<string, SQLOutputValue>[] {
    return prepared(this.#database, sql).all(...values);
  }

  /** Runs any statement. @returns how many rows it changed. */
  run(sql: string, ...values: readonly SQLInputValue[]): number {
    return Number(prepared(this.#database, sql).run(...values).changes);
  }

  #insertion(verb: string, columns: readonly string[]): string {
    const parameters = columns.map(() => "?").join(", ");
    return `${verb} INTO ${this.#name} (${columns.join(", ")}) VALUES (${parameters})`;
  }

  #filter(where: Where<Schema>): readonly [sql: string, values: readonly SQLInputValue[]] {
    const conditions: string[] = [];
    const values: SQLInputValue[] = [];
    for (const [field, value] of Object.entries(where)) {
      const column = `${this.#name}.${this.#column(field)}`;
      if (value === undefined) conditions.push(`${column} IS NULL`);
      else if (typeof value !== "object" || Array.isArray(value)) {
        values.push(stored(value));
        conditions.push(`${column} ${Array.isArray(value) ? "IN (SELECT value FROM json_each(?))" : "= ?"}`);
      } else {
        for (const [operator, operand] of Object.entries(value as object)) {
          values.push(stored(operand));
          conditions.push(OPERATORS[operator as keyof typeof OPERATORS](column));
        }
      }
    }
    return [conditions.length === 0 ? "" : `WHERE ${conditions.join(" AND ")}`, values];
  }

  #column(field: string): string {
    const column = this.#columns.get(field);
    if (column === undefined) throw new Error(`${this.#name} has no field '${field}'`);
    return column.name;
  }

  #parse(row: Readonly<Record<string, SQLOutputValue>>): Inferred<Schema> {
    try {
      const values: Record<string, unknown> = {};
      for (const [field, { name, kind }] of this.#columns) {
        const value = row[name] ?? undefined;
        if (value === undefined || kind === "plain") values[field] = value;
        else values[field] = kind === "json" ? JSON.parse(String(value)) : value === 1;
      }
      return this.#schema.parse(values) as Inferred<Schema>;
    } catch (error) {
      const reason = error instanceof z.ZodError ? z.prettifyError(error) : messageOf(error);
      throw new Error(`its table '${this.#name}' has an invalid row: ${reason}`, { cause: error });
    }
  }
}

function stored(value: unknown): SQLInputValue {
  if (value === undefined) return null;
  if (typeof value === "boolean") return Number(value);
  return typeof value === "object" ? JSON.stringify(value) : (value as SQLInputValue);
}

function snakeCase(field: string): string {
  return field.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

function kindOf(type: z.core.$ZodType): Column["kind"] {
  if (type instanceof z.ZodOptional || type instanceof z.ZodDefault) return kindOf(type.unwrap());
  if (type instanceof z.ZodPipe) return kindOf(type.in);
  if (type instanceof z.ZodBoolean) return "boolean";
  return type instanceof z.ZodString || type instanceof z.ZodNumber || type instanceof z.ZodEnum
    ? "plain"
    : "json";
}
