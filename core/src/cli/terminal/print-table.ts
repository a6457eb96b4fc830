import { visibleText } from "./visible-text.js";

/**
 * Prints rows: for a person below a heading and in columns, for a program as tab-separated lines.
 * @param heading a name for each column.
 */
export function printTable(heading: readonly string[], rows: readonly (readonly string[])[]): void {
  process.stdout.write(tableText(heading, rows, process.stdout.isTTY));
}

export function tableText(
  heading: readonly string[],
  rows: readonly (readonly string[])[],
  isTerminal: boolean,
): string {
  const lines = isTerminal
    ? aligned([heading, ...rows.map((row) => row.map(shown))])
    : rows.map((row) => row.join("\t"));
  return lines.map((line) => `${line}\n`).join("");
}

/** A cell without characters that a terminal would obey. */
function shown(cell: string): string {
  return visibleText(cell).replaceAll(/[\t\n]+/g, " ");
}

function aligned(rows: readonly (readonly string[])[]): readonly string[] {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)));
  return rows.map((row) =>
    row
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join("  ")
      .trimEnd(),
  );
}
