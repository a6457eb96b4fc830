import { readFile, writeFile } from "node:fs/promises";
import { availableParallelism, cpus } from "node:os";
import type { NamedRow } from "../kit/compared-row.js";

/** Rows that `npm run generate` writes into docs/measurements.md. */
const FILE = new URL("../../../docs/measurements.json", import.meta.url);
const CORES = ["", "one core", "two cores"];

/** A row with all that its figures depend on. */
interface RecordedRow extends NamedRow {
  readonly backend: string;
  readonly machine: string;
  readonly date: string;
}

/** Keeps rows; those of an earlier run on the same kind of machine are replaced. */
export async function recordRows(rows: readonly NamedRow[], backend: string): Promise<void> {
  const recorded = JSON.parse(await readFile(FILE, "utf8")) as readonly RecordedRow[];
  const cores = availableParallelism();
  const machine = `${CORES[cores] ?? `${cores} cores`}, ${cpus()[0]?.model ?? "unknown"}`;
  const date = new Date().toISOString().slice(0, 10);
  const added = rows.map((row): RecordedRow => ({ ...row, backend, machine, date }));
  const keyOf = (one: RecordedRow): string =>
    JSON.stringify([one.row, one.against, one.backend, one.machine]);
  const all = new Map([...recorded, ...added].map((row) => [keyOf(row), row]));
  await writeFile(FILE, `${JSON.stringify([...all.values()], undefined, 2)}\n`);
}
