import { posix } from "node:path";
import { StringDecoder } from "node:string_decoder";
import { exitCodeOf, type Output } from "@coppice/core/backend";
import type { OutputPiece, StartedCommand } from "@coppice/plugin-commands";
import type { SandboxProcesses } from "../processes/sandbox-processes.js";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import {
  checkCommand,
  type ExecCommand,
  type ExecResult,
  type SandboxSessions,
  type Session,
} from "../shell/session.js";
import { ShellError } from "../shell/shell-error.js";
import {
  type CommandBody,
  commandBody,
  event,
  inputOf,
  isBase64,
  sessionIdOf,
  SESSIONLESS,
  type ShellRoute,
  success,
} from "./route.js";

const NEWLINE = 0x0a;
/** A command ends without the children that it left in the background, which may hold its output open. */
const LAST_OUTPUT_MS = 200;
/** Exit code of a command without a session that its time-out ended. */
const TIMED_OUT = 124;

/** Commands that are waited for, or followed. */
export function commandRoutes(config: ShellSessionsConfig): readonly ShellRoute[] {
  const execute: ShellRoute = {
    method: "POST",
    path: "/api/execute",
    async handle({ body, headerSession, sessions, processes }) {
      const input = inputOf(commandBody, body);
      const { command, sessionId, encoding } = input;
      const wanted = commandOf(input);
      const session = sessionOf(input, { headerSession, sessions, config });
      if (input.background === true)
        return success(startedFields(await processes.start(session, wanted), input));
      const result =
        session === undefined
          ? await execAlone(processes, wanted, config)
          : inLines(await session.exec(wanted));
      const { exitCode, stdout, stderr, truncated } = result;
      return {
        ...success({
          success: exitCode === 0,
          exitCode,
          command,
          duration: 0,
          ...(truncated && { truncated }),
          ...(sessionId && { sessionId }),
        }),
        long: { stdout, stderr },
        held: result,
        isBase64: isBase64(encoding),
      };
    },
  };

  const executeStream: ShellRoute = {
    method: "POST",
    path: "/api/execute/stream",
    async handle({ body, headerSession, sessions, processes, signal }) {
      const input = inputOf(commandBody, body);
      const wanted = commandOf(input);
      const session = sessionOf(input, { headerSession, sessions, config });
      const started = await processes.start(session, { ...wanted, lastOutputMs: LAST_OUTPUT_MS });
      const output = started.subscribe(signal);
      return { events: commandEvents(started, { input, session, output, signal }) };
    },
  };
  return [execute, executeStream];
}

interface CommandEventsOptions {
  readonly input: CommandBody;
  readonly session: Session | undefined;
  readonly output: AsyncIterable<OutputPiece>;
  readonly signal: AbortSignal;
}

/** A command that goes on when its client leaves. */
async function* commandEvents(
  started: StartedCommand,
  { input: { command, encoding, timeoutMs }, session, output, signal }: CommandEventsOptions,
): AsyncGenerator<Readonly<Record<string, unknown>>> {
  const { pid, request, expired } = started;
  yield event("start", { command, pid, processId: request.tag });
  yield* outputEvents(output, { inBase64: isBase64(encoding) });
  if (signal.aborted) return;
  const { exit } = await started.ended;
  if (expired.aborted && session !== undefined) {
    const text = `Failed to execute command in session '${session.id}': Command timeout after ${timeoutMs}ms`;
    throw new ShellError("COMMAND_EXECUTION_ERROR", text);
  }
  if (exit === undefined) throw endedWithSandbox();
  if (expired.aborted) yield event("stderr", { data: timedOutText(timeoutMs) });
  yield event("complete", { exitCode: expired.aborted ? TIMED_OUT : exitCodeOf(exit) });
}

/** The session that a request means, made with it; undefined for none. */
export function sessionOf(
  { sessionId, cwd }: Pick<CommandBody, "sessionId" | "cwd">,
  from: {
    readonly headerSession?: string | undefined;
    readonly sessions: SandboxSessions;
    readonly config: ShellSessionsConfig;
  },
): Session | undefined {
  const id = sessionIdOf(sessionId ?? undefined, from.headerSession);
  if (id === SESSIONLESS) return undefined;
  return from.sessions.get(id, { cwd: cwd ? posix.resolve(from.config.workdir, cwd) : undefined });
}

/** @throws ShellError for what no shell can take. */
export function commandOf({ command, cwd, env, timeoutMs }: CommandBody): ExecCommand {
  const wanted = {
    command,
    // Clients send an empty one for none.
    cwd: cwd ? cwd : undefined,
    env: env ?? undefined,
    timeoutMs: timeoutMs ?? undefined,
  };
  checkCommand(wanted);
  return wanted;
}

/** Fields of the answer to the start of a process. */
export function startedFields(
  { pid, request }: StartedCommand,
  { command }: CommandBody,
): Readonly<Record<string, unknown>> {
  return { processId: request.tag, pid, command };
}

/** Runs a command in no session. Its time-out is no error, and its output is verbatim. */
export async function execAlone(
  processes: SandboxProcesses,
  command: ExecCommand,
  { maxOutput, commandTimeout }: Pick<ShellSessionsConfig, "maxOutput" | "commandTimeout">,
): Promise<ExecResult> {
  const timeoutMs = command.timeoutMs ?? commandTimeout;
  const started = await processes.run({ ...command, timeoutMs, lastOutputMs: LAST_OUTPUT_MS });
  const collector = processes.newCollector(maxOutput);
  try {
    for await (const piece of started.subscribe(new AbortController().signal)) await collector.add(piece);
    const { exit } = await started.ended;
    const result = await collector.result();
    if (started.expired.aborted) {
      const stderr = result.stderr.with(Buffer.from(timedOutText(timeoutMs)));
      return { ...result, stderr, exitCode: TIMED_OUT };
    }
    if (exit === undefined) throw endedWithSandbox();
    return { ...result, exitCode: exitCodeOf(exit) };
  } catch (error) {
    await collector[Symbol.asyncDispose]();
    throw error;
  }
}

function timedOutText(timeoutMs: number | null | undefined): string {
  return `Command timed out after ${timeoutMs}ms\n`;
}

function endedWithSandbox(): ShellError {
  return new ShellError("PROCESS_ERROR", "The sandbox has ended before the command");
}

/** Clients expect the output of `echo hi` in a session to be `hi`. */
function inLines(result: ExecResult): ExecResult {
  const { stdout, stderr } = result;
  return { ...result, stdout: stdout.withoutLast(NEWLINE), stderr: stderr.withoutLast(NEWLINE) };
}

interface OutputEventsOptions {
  /** Otherwise the output is text: what is no UTF-8 becomes U+FFFD. */
  readonly inBase64: boolean;
  /** More fields of every event. */
  readonly fields?: Readonly<Record<string, unknown>>;
}

/** Output as events whose data, put together by stream, are the whole text: no piece ends inside a character. */
export async function* outputEvents(
  output: AsyncIterable<Output>,
  { inBase64, fields }: OutputEventsOptions,
): AsyncGenerator<Readonly<Record<string, unknown>>> {
  const encoding = inBase64 ? "base64" : "utf8";
  const decoders = { stdout: new StringDecoder(encoding), stderr: new StringDecoder(encoding) };
  for await (const { stream, data } of output) {
    const name = stream === "stderr" ? "stderr" : "stdout";
    const text = decoders[name].write(data);
    if (text !== "") yield event(name, { data: text, ...fields });
  }
  for (const name of ["stdout", "stderr"] as const) {
    const text = decoders[name].end();
    if (text !== "") yield event(name, { data: text, ...fields });
  }
}
