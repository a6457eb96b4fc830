import { visibleText } from "./visible-text.js";

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
