import {
  parseInput,
  parseSandboxId,
  type Peers,
  queryNumber,
  type RequestCarrier,
  requestOf,
  type Router,
  type Sandboxes,
  sandboxesOf,
} from "@coppice/core";
import { z } from "zod";
import type { Commands, LoggedCommand, LoggedPiece, SandboxLogs } from "../contract/commands.js";
import { TextLines } from "../contract/text-lines.js";

interface LogLine {
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
async function* logLines(
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
    for (const line of lines.push(piece.data))
      yield { atMs: piece.atMs, stream: piece.stream, text: line.replace(/\r?\n$/, ""), command };
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

interface SandboxLogsRoutesOptions {
  readonly commands: Commands;
  readonly peers: Pick<Peers, "hold">;
  readonly sandboxes: Sandboxes;
  /** UTF-16 units of the longest message. */
  readonly longestLine: number;
  /** Approximate limit of one answer's text, in UTF-16 units. */
  readonly largestAnswer: number;
}

type LogsContext = RequestCarrier & { readonly params: Readonly<Record<string, string>> };

const LOGS = /^(?:\/v2)?\/sandboxes\/([^/]+)\/logs\/?$/;
const LEVELS = ["debug", "info", "warn", "error"] as const;
const MAX_ENTRIES = 1000;
const MAX_SEARCH = 256;

const milliseconds = queryNumber("unix milliseconds");
const limit = queryNumber("a number of entries", 9)
  .refine((count) => count <= MAX_ENTRIES, { error: `expected at most ${MAX_ENTRIES}` })
  .default(MAX_ENTRIES);

const legacyQuery = z.object({ start: milliseconds.default(0), limit });

const logsQuery = z.object({
  /** Start of a forward page, end of a backward page. */
  cursor: milliseconds.optional(),
  limit,
  direction: z.enum(["forward", "backward"]).default("forward"),
  level: z.enum(LEVELS).default("debug"),
  search: z.string().max(MAX_SEARCH).default(""),
});

/** Serves the output of a sandbox's commands as E2B's log entries, also after its end. */
export function mountSandboxLogs(
  router: Router,
  { commands, peers, sandboxes, longestLine, largestAnswer }: SandboxLogsRoutesOptions,
): void {
  const linesOf = async (context: LogsContext, sinceMs: number) => {
    const id = parseSandboxId(context.params["id"]);
    const own = sandboxesOf(context, sandboxes);
    const logs = commands.log(id);
    if (!((await own.remembers(id)) && (await hasAny(logs)))) own.get(id);
    return logLines(logs, { sinceMs, longestLine });
  };

  // The id of a sandbox that has ended tells no server any more.
  peers.hold({
    kind: "ended sandbox",
    surface: "api",
    inPath: (pathname) => LOGS.exec(pathname)?.[1],
    has: (reference, tenant) => sandboxes.of(tenant).remembers(reference.split("-")[0] ?? ""),
  });

  router.get("/sandboxes/:id/logs", async (context) => {
    const query = parseInput(legacyQuery, context.query);
    const lines = await linesOf(context, query.start);
    const { signal } = requestOf(context);
    const found = await firstOf(lines, { most: query.limit, largestAnswer, signal, isWanted: () => true });
    context.body = {
      logs: found.map((line) => ({ timestamp: timestampOf(line.atMs), line: jsonLineOf(line) })),
      logEntries: found.map(entryOf),
    };
  });

  router.get("/v2/sandboxes/:id/logs", async (context) => {
    const { cursor, direction, level, search, limit: most } = parseInput(logsQuery, context.query);
    const least = LEVELS.indexOf(level);
    const lastMs = direction === "backward" ? (cursor ?? Infinity) : Infinity;
    const isWanted = (line: LogLine): boolean =>
      line.atMs <= lastMs && LEVELS.indexOf(levelOf(line)) >= least && line.text.includes(search);
    const lines = await linesOf(context, direction === "forward" ? (cursor ?? 0) : 0);
    const { signal } = requestOf(context);
    const take = direction === "forward" ? firstOf : lastOf;
    context.body = { logs: (await take(lines, { most, largestAnswer, signal, isWanted })).map(entryOf) };
  });
}

interface TakeOptions {
  readonly most: number;
  readonly largestAnswer: number;
  readonly signal: AbortSignal;
  readonly isWanted: (line: LogLine) => boolean;
}

async function firstOf(lines: AsyncIterable<LogLine>, options: TakeOptions): Promise<readonly LogLine[]> {
  const { most, largestAnswer, signal, isWanted } = options;
  const taken: LogLine[] = [];
  let units = 0;
  if (most === 0) return taken;
  for await (const line of lines) {
    if (signal.aborted) break;
    if (!isWanted(line)) continue;
    taken.push(line);
    units += line.text.length;
    if (taken.length >= most || units >= largestAnswer) break;
  }
  return taken;
}

/** The last matching lines, newest first. */
async function lastOf(lines: AsyncIterable<LogLine>, options: TakeOptions): Promise<readonly LogLine[]> {
  const { most, largestAnswer, signal, isWanted } = options;
  const taken: LogLine[] = [];
  let units = 0;
  for await (const line of lines) {
    if (signal.aborted) break;
    if (!isWanted(line)) continue;
    taken.push(line);
    units += line.text.length;
    while (taken.length > most || (units > largestAnswer && taken.length > 1))
      units -= taken.shift()?.text.length ?? 0;
  }
  return taken.reverse();
}

function entryOf({ atMs, text, stream, command }: LogLine) {
  return {
    timestamp: timestampOf(atMs),
    level: levelOf({ stream }),
    message: text,
    fields: { stream, pid: String(command.pid), commandID: command.id, cmd: command.path },
  };
}

/** E2B's CLI parses each line, and shows its `level`, `logger` and `message`. */
function jsonLineOf(line: LogLine): string {
  const { fields, ...entry } = entryOf(line);
  return JSON.stringify({ ...entry, logger: "process", ...fields });
}

function levelOf({ stream }: Pick<LogLine, "stream">): (typeof LEVELS)[number] {
  return stream === "stderr" ? "error" : "info";
}

function timestampOf(atMs: number): string {
  return new Date(atMs).toISOString();
}

async function hasAny(logs: SandboxLogs): Promise<boolean> {
  for await (const _ of logs.list()) return true;
  return false;
}
