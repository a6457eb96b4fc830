import {
  CloseCode,
  type LiveSandbox,
  type Logger,
  parseJson,
  parseSandboxId,
  SandboxError,
  type Sandboxes,
  sandboxesOf,
  sendMessage,
  takeMessages,
  type WebSocket,
  type WebSocketRoute,
} from "@coppice/core";
import { describeExit, type Output, type TerminalSize } from "@coppice/core/backend";
import { type Commands, type StartedCommand, TextLines } from "@coppice/plugin-commands";
import { z } from "zod";
import type { LegacyShimsConfig } from "./legacy-shims-config.js";

interface ShellSocketsOptions {
  readonly sandboxes: Sandboxes;
  readonly commands: Commands;
  readonly config: LegacyShimsConfig;
}

const TERMINAL: TerminalSize = { columns: 80, rows: 24 };
const TERMINAL_TYPE = "xterm-256color";

/** WebSockets with a new shell for each. A shell ends with its socket, because there is no way to reconnect. */
export function shellSockets({ sandboxes, commands, config }: ShellSocketsOptions): WebSocketRoute {
  return {
    maxMessageBytes: config.maxMessage,
    pingIntervalMs: config.pingInterval,
    room: config,
    sandboxOf: (request) =>
      sandboxesOf(request, sandboxes).get(parseSandboxId(request.url.pathname.split("/")[2])),
    async open({ request, sandbox, closed }) {
      const query = request.url.searchParams;
      const dialect = dialectIn(query, config.dialect);
      const terminal = dialect === "pty" ? sizeIn(query) : undefined;
      const command = await commands.start(sandbox, {
        path: config.shell,
        user: query.get("user") ?? undefined,
        ...(terminal && { terminal, environment: { TERM: TERMINAL_TYPE } }),
      });
      // From here on the shell ends with the socket, also when the handshake fails.
      const kill = (): void => void command.kill("SIGKILL", "group").catch(() => undefined);
      const output = command.subscribe(closed);
      closed.addEventListener("abort", kill, { once: true });
      if (closed.aborted) kill();
      return (socket) =>
        void serveShell(socket, { sandbox, command, output, dialect, config, log: request.log });
    },
  };
}

function dialectIn(
  query: URLSearchParams,
  usual: LegacyShimsConfig["dialect"],
): LegacyShimsConfig["dialect"] {
  const dialect = query.get("dialect") ?? usual;
  if (dialect === "json" || dialect === "pty") return dialect;
  throw new SandboxError("request_invalid", "the dialect is json or pty");
}

function sizeIn(query: URLSearchParams): TerminalSize {
  const cells = (name: string, usual: number): number => {
    const number = Number(query.get(name) ?? usual);
    if (Number.isInteger(number) && number >= 1 && number <= MAX_TERMINAL) return number;
    throw new SandboxError("terminal_size_invalid", `${name} is a number from 1 to ${MAX_TERMINAL}`);
  };
  return { columns: cells("cols", TERMINAL.columns), rows: cells("rows", TERMINAL.rows) };
}

interface ShellOptions {
  readonly sandbox: LiveSandbox;
  readonly command: StartedCommand;
  readonly output: AsyncIterable<Output>;
  /** `json`: texts over pipes. `pty`: a terminal, whose bytes are sent unchanged. */
  readonly dialect: "json" | "pty";
  readonly config: Pick<LegacyShimsConfig, "maxLine">;
  readonly log: Logger;
}

/** Connects a WebSocket and a shell until one of them ends. Never rejects. */
async function serveShell(socket: WebSocket, options: ShellOptions): Promise<void> {
  const { command, log } = options;
  takeInput(socket, options);
  try {
    await sendOutput(socket, options);
    const status = command.end?.exit === undefined ? "" : describeExit(command.end.exit).status;
    socket.close(CloseCode.Normal, status);
  } catch (error) {
    if (socket.readyState !== socket.OPEN) return;
    log.error({ err: error }, "serving a shell failed");
    socket.close(CloseCode.InternalError);
  }
}

async function sendOutput(socket: WebSocket, { command, output, ...options }: ShellOptions): Promise<void> {
  if (options.dialect === "pty") {
    for await (const { data } of output) await sendMessage(socket, data);
    return;
  }
  const frames = new LineFrames(options.config.maxLine);
  for await (const piece of output) {
    const frame = frames.push(piece);
    if (frame !== undefined) await sendMessage(socket, frame);
  }
  for (const frame of frames.finish()) await sendMessage(socket, frame);
  const exit = command.end?.exit;
  if (exit === undefined) return;
  await sendMessage(socket, JSON.stringify({ type: "exit", code: describeExit(exit).exitCode }));
}

/** Writes the client's messages as fast as the shell reads. */
function takeInput(socket: WebSocket, { sandbox, command }: ShellOptions): void {
  takeMessages(socket, sandbox, async (message, isBinary) => {
    const frame = parseClientFrame(message, isBinary);
    // An error for each of what a client sends after the end takes tens of milliseconds of a turn.
    if (command.end !== undefined) return;
    if (frame.type === "input") await command.write(frame.data);
    else if (frame.type === "resize" && command.request.terminal !== undefined) {
      await command.resize({ columns: frame.columns, rows: frame.rows });
    }
  });
}

/**
 * Output in the JSON dialect: texts that end with a line unless it is too long, so that no frame ends inside a
 * character. Joined, the texts of a stream equal its output.
 */
export class LineFrames {
  readonly #lines: { readonly stdout: TextLines; readonly stderr: TextLines };

  constructor(longestLine: number) {
    this.#lines = { stdout: new TextLines(longestLine + 1), stderr: new TextLines(longestLine + 1) };
  }

  /** The frame that this output completes, if any. */
  push({ stream, data }: Output): string | undefined {
    const type = stream === "stderr" ? "stderr" : "stdout";
    return frameOf(type, this.#lines[type].push(data));
  }

  /** The remaining unfinished lines at the end. */
  finish(): readonly string[] {
    return (["stdout", "stderr"] as const).flatMap((type) => frameOf(type, this.#lines[type].finish()) ?? []);
  }
}

function frameOf(type: "stdout" | "stderr", lines: readonly string[]): string | undefined {
  return lines.length === 0 ? undefined : JSON.stringify({ type, text: lines.join("") });
}

/** Message of a client over a WebSocket, in either dialect. */
type ClientFrame =
  | { readonly type: "input"; readonly data: Uint8Array }
  | { readonly type: "resize"; readonly columns: number; readonly rows: number }
  /** A frame of a newer client, which this server can ignore. */
  | { readonly type: "unknown" };

const MAX_TERMINAL = 65_535;
const cells = z.int().min(1).max(MAX_TERMINAL);

const textFrame = z.union([
  z.object({ type: z.literal("input"), data: z.string() }),
  // The older dialect calls its own frames after the stream, and their content `text`.
  z.object({ type: z.literal("stdin"), text: z.string() }),
  z.object({ type: z.literal("resize"), cols: cells, rows: cells }),
]);
const anyFrame = z.object({ type: z.string() });
const KNOWN_TYPES = ["input", "stdin", "resize"];

/** Parses a message; a binary one is plain input. @throws SandboxError invalid_argument for an invalid frame. */
export function parseClientFrame(message: Buffer, isBinary: boolean): ClientFrame {
  if (isBinary) return { type: "input", data: message };
  const value = valueOf(message);
  const parsed = textFrame.safeParse(value);
  if (!parsed.success) {
    const named = anyFrame.safeParse(value);
    if (named.success && !KNOWN_TYPES.includes(named.data.type)) return { type: "unknown" };
    throw new SandboxError("frame_invalid", "no frame that this server knows");
  }
  const frame = parsed.data;
  if (frame.type === "resize") return { type: "resize", columns: frame.cols, rows: frame.rows };
  return { type: "input", data: Buffer.from(frame.type === "input" ? frame.data : frame.text) };
}

function valueOf(message: Buffer): unknown {
  try {
    return parseJson(message);
  } catch {
    throw new SandboxError("frame_invalid", "a text frame is JSON with few values");
  }
}
