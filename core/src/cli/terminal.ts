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

// Anything but tabs and newlines among the control characters (C0, DEL, C1): a terminal would obey them.
// eslint-disable-next-line no-control-regex
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

/** Shows each control character as `\x1b`: a sandbox's output must not steer the terminal. */
export function visibleText(text: string): string {
  return text.replaceAll(CONTROLS, (each) => `\\x${each.charCodeAt(0).toString(16).padStart(2, "0")}`);
}

/** Prints a line that may be of a server, a sandbox or a registry: a terminal shows its control characters in readable form. */
export function printLine(
  text: string,
  stream: Pick<NodeJS.WriteStream, "write" | "isTTY"> = process.stdout,
): void {
  stream.write(`${stream.isTTY ? visibleText(text) : text}\n`);
}

/** Tells on stderr what failed. */
export function printFailure(
  text: string,
  stream: Pick<NodeJS.WriteStream, "write" | "isTTY"> = process.stderr,
): void {
  printLine(`coppice: ${text}`, stream);
}

const LEVELS: Readonly<Record<number, string>> = {
  10: "trace",
  20: "debug",
  30: "     ",
  40: "warn ",
  50: "ERROR",
  60: "FATAL",
};

/** Takes lines of the log in JSON, and writes them for a person at a terminal: `07:54:50 warn  [fleet] text  key=value`. */
export function readableLog(stream: Pick<NodeJS.WriteStream, "write">): { write(line: string): void } {
  return { write: (line) => void stream.write(`${lineOf(line)}\n`) };
}

function lineOf(line: string): string {
  const parsed: unknown = JSON.parse(line);
  const { level, time, plugin, msg, err, ...fields } = parsed as Readonly<Record<string, unknown>>;
  const clock = String(time).slice(11, 19);
  const from = typeof plugin === "string" && plugin !== "core" ? `[${plugin}] ` : "";
  const known = typeof msg === "string" ? msg : "";
  // What the text says already.
  const more = Object.entries(fields).filter(([, value]) => !known.includes(String(value)));
  const shown = more.map(
    ([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`,
  );
  const text = `${clock} ${LEVELS[Number(level)] ?? ""} ${from}${[known, ...shown].join("  ").replaceAll("\n", "\\n")}`;
  return [text, ...errorLines(err)].map(visibleText).join("\n");
}

/** Of an error with its stack, each line of that. */
function errorLines(error: unknown): readonly string[] {
  if (typeof error !== "object" || error === null) return [];
  const { message = "", stack = message } = error as { readonly message?: string; readonly stack?: string };
  return stack.split("\n").map((line) => `    ${line}`);
}
