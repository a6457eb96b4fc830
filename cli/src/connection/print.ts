import { printLine, printTable, SandboxError } from "@coppice/core/client";

export interface RowOptions {
  readonly json?: true | undefined;
  readonly fields?: string | undefined;
}

type Cell = string | number | Date | undefined;

/** A table's rows by the names of their columns. */
export type Row = Readonly<Record<string, Cell>>;

/**
 * Prints rows: as a table on a terminal, as tab-separated lines elsewhere, with `--json` all that `bodies` have.
 * @param columns names of all columns, in their order. @throws SandboxError invalid_argument for an unknown column.
 */
export function printRows(
  columns: readonly string[],
  rows: readonly Row[],
  { json, fields }: RowOptions,
  bodies: readonly unknown[] = rows,
): void {
  const chosen = chosenColumns(columns, fields);
  if (json && fields === undefined) return printJson(bodies);
  const pick = (row: Row) => chosen.map((name) => [name, row[name]] as const);
  if (json) return printJson(rows.map((row) => Object.fromEntries(pick(row))));
  printTable(
    chosen.map((name) => name.toUpperCase()),
    rows.map((row) => pick(row).map(([, cell]) => textOf(cell))),
  );
}

/** The columns of `--fields`; all without it. @throws SandboxError invalid_argument for an unknown one. */
export function chosenColumns(columns: readonly string[], fields: string | undefined): readonly string[] {
  const chosen = fields?.split(",") ?? columns;
  const unknown = chosen.find((name) => !columns.includes(name));
  if (unknown === undefined) return chosen;
  throw new SandboxError("usage_invalid", `--fields has ${columns.join(", ")}, not '${unknown}'`);
}

export function printJson(body: unknown): void {
  printLine(JSON.stringify(body));
}

function textOf(cell: Cell): string {
  return cell instanceof Date ? cell.toISOString() : String(cell ?? "-");
}
