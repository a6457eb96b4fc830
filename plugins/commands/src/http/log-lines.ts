import type { LoggedCommand, LoggedPiece, SandboxLogs } from "../contract/commands.js";
import { TextLines } from "../contract/text-lines.js";

export interface LogLine {
  /** Time of its completion, in milliseconds since the Unix epoch. */
  readonly atMs: number;
  readonly stream: LoggedPiece["stream"];
  /** Without its newline. */
  readonly text: string;
  readonly command: LoggedCommand;
}

interface LogLinesOptions {
  readonly sinceMs: number;
  /** UTF-16 units after which a line is returned unfinished. */
  readonly longestLine: number;
}

interface OpenLines {
  readonly command: LoggedCommand;
  readonly stream: LoggedPiece["stream"];
  readonly lines: TextLines;
}

/** Lines in the order of their completion. The end of a command completes its last line. */
export async function* logLines(
  logs: SandboxLogs,
  { sinceMs, longestLine }: LogLinesOptions,
): AsyncGenerator<LogLine> {
  const commands = new Map<string, LoggedCommand>();
  for await (const command of logs.list()) commands.set(command.id, command);
  const open = new Map<string, OpenLines>();
  for await (const piece of logs.outputSince(sinceMs)) {
    yield* endedLines(open, piece.atMs);
    const command = commands.get(piece.id);
    // A command that began after the list was read: the next round has it.
    if (command === undefined) continue;
    const key = `${piece.stream} ${piece.id}`;
    const { lines } = open.get(key) ?? { lines: new TextLines(longestLine) };
    open.set(key, { command, stream: piece.stream, lines });
    for (const line of lines.push(piece.data)) {
      yield { atMs: piece.atMs, stream: piece.stream, text: line.replace(/\r?\n$/, ""), command };
    }
  }
  yield* endedLines(open, Infinity);
}

/** Unfinished lines of commands that had ended by then, the first to end first. */
function* endedLines(open: Map<string, OpenLines>, untilMs: number): Generator<LogLine> {
  const ended = [...open]
    .map(([key, value]) => ({ key, ...value, atMs: value.command.end?.endedAtMs ?? Infinity }))
    .filter(({ atMs }) => atMs < untilMs)
    .toSorted((one, other) => one.atMs - other.atMs);
  for (const { key, command, stream, lines, atMs } of ended) {
    open.delete(key);
    for (const text of lines.finish()) yield { atMs, stream, text, command };
  }
}
