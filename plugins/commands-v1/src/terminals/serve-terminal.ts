import {
  CloseCode,
  type LiveSandbox,
  type Logger,
  sendMessage,
  takeMessages,
  unlessAborted,
  type WebSocket,
  SandboxError,
  type Sandboxes,
  type WebSocketRoute,
} from "@coppice/core";
import type { Commands, StartedCommand } from "@coppice/plugin-commands";
import { exitCodeOf } from "../commands/command-body.js";
import type { LogFollowers } from "../logs/log-followers.js";
import type { CommandsV1Config } from "../commands-v1-config.js";
import type { NamedSandboxes } from "../sandboxes/named-sandboxes.js";
import type { Terminals } from "./terminals.js";

/** First byte of a frame. */
const Kind = { Input: 0x01, Output: 0x02, Resize: 0x03, Exit: 0x04, Ping: 0x05 } as const;

type ClientFrame =
  | { readonly type: "input"; readonly data: Buffer }
  | { readonly type: "resize"; readonly columns: number; readonly rows: number }
  | { readonly type: "ping" };

const RESIZE_BYTES = 5;

/** Sent by both sides; neither answers one of the server's with more than one. */
const PING = Buffer.of(Kind.Ping);

/** Parses a binary message of a client. @throws SandboxError invalid_argument for an invalid one. */
export function parseFrame(message: Buffer): ClientFrame {
  const [kind] = message;
  if (kind === Kind.Input) return { type: "input", data: message.subarray(1) };
  if (kind === Kind.Ping) return { type: "ping" };
  if (kind === Kind.Resize && message.length === RESIZE_BYTES) {
    const [columns, rows] = [message.readUInt16BE(1), message.readUInt16BE(3)];
    if (columns > 0 && rows > 0) return { type: "resize", columns, rows };
  }
  throw new SandboxError("frame_invalid", "no frame that this server knows");
}

export function outputFrame(data: Uint8Array): Buffer {
  return Buffer.concat([Buffer.of(Kind.Output), data]);
}

/** The end of a terminal, with its shell's exit code as a signed 32-bit number. */
export function exitFrame(code: number): Buffer {
  const frame = Buffer.alloc(5);
  frame.writeUInt8(Kind.Exit);
  frame.writeInt32BE(code, 1);
  return frame;
}

export interface ServeTerminalOptions {
  readonly sandbox: LiveSandbox;
  readonly terminal: StartedCommand;
  readonly logs: ReturnType<Commands["log"]>;
  readonly followers: LogFollowers;
  /** Offset of the first byte of output to send. */
  readonly from: number;
  readonly log: Logger;
}

const PAGE_BYTES = 64 * 1024;

/** Connects a WebSocket and a terminal until one of them ends. Never rejects. */
export async function serveTerminal(socket: WebSocket, options: ServeTerminalOptions): Promise<void> {
  const { terminal, log } = options;
  takeInput(socket, options);
  try {
    if (!(await sendOutput(socket, options))) return;
    const code = exitCodeOf(terminal);
    if (code === null) {
      socket.close(CloseCode.GoingAway, "the sandbox has ended");
      return;
    }
    await sendMessage(socket, exitFrame(code));
    socket.close(CloseCode.Normal);
  } catch (error) {
    if (socket.readyState !== socket.OPEN) return;
    log.error({ err: error }, "serving a terminal failed");
    socket.close(CloseCode.InternalError);
  }
}

/**
 * Sends output from the log, at the client's pace: a slow client holds neither the terminal nor other clients, and takes
 * the memory of one page. @returns false when the client has left.
 */
async function sendOutput(
  socket: WebSocket,
  { terminal, logs, followers, from }: ServeTerminalOptions,
): Promise<boolean> {
  const left = new AbortController();
  socket.once("close", () => left.abort());
  using watched = followers.watch(terminal);
  for (let cursor = from; socket.readyState === socket.OPEN;) {
    const grown = watched.grown();
    const page =
      watched.recent(cursor, PAGE_BYTES) ??
      (await logs.page(terminal.id, { cursor, limitBytes: PAGE_BYTES }));
    const { pieces, nextCursor, command } = page;
    if (nextCursor > cursor) {
      cursor = nextCursor;
      await sendMessage(socket, outputFrame(Buffer.concat(pieces.map(({ data }) => data))));
    } else if (command.phase !== "running") return true;
    // Not by a race with a promise of the close: it would keep the reactions of all waits.
    else await unlessAborted(left.signal, () => grown).catch(() => undefined);
  }
  return false;
}

/** Writes the client's input as fast as the terminal takes it. */
function takeInput(socket: WebSocket, { sandbox, terminal }: ServeTerminalOptions): void {
  takeMessages(socket, sandbox, async (message, isBinary) => {
    if (!isBinary) return;
    const frame = parseFrame(message);
    // An error for each of what a client sends after the end takes tens of milliseconds of a turn.
    if (terminal.end !== undefined) return;
    if (frame.type === "input") await terminal.write(frame.data);
    else if (frame.type === "resize") await terminal.resize({ columns: frame.columns, rows: frame.rows });
  });
}

interface SessionSocketsOptions {
  readonly named: NamedSandboxes;
  readonly sandboxes: Sandboxes;
  readonly commands: Commands;
  readonly terminals: Terminals;
  readonly followers: LogFollowers;
  readonly config: CommandsV1Config;
}

const SESSION_PATH = /\/sandboxes\/([^/]+)\/sessions\/([^/]+)$/;
const MAX_SESSION_NAME = 128;

/** WebSockets of terminals. A client that connects again gets the terminal that it left, and its last output. */
export function sessionSockets(options: SessionSocketsOptions): WebSocketRoute {
  const { named, sandboxes, commands, terminals, followers, config } = options;
  return {
    maxMessageBytes: config.maxMessage,
    pingIntervalMs: config.pingInterval,
    pingMessage: PING,
    room: config,
    sandboxOf: (request) => named.get(request, SESSION_PATH.exec(request.url.pathname)?.[1]),
    async open({ request, sandbox, closed }) {
      onAbort(closed, await sandboxes.use(sandbox));
      const session = sessionName(SESSION_PATH.exec(request.url.pathname)?.[2]);
      const { workdir: cwd } = named.describe(sandbox);
      const terminal = await terminals.open(sandbox, { session, cwd });
      const attached = terminals.attach(terminal);
      onAbort(closed, () => attached[Symbol.dispose]());
      const logs = commands.log(sandbox.record.id);
      const { outputBytes } = await logs.find({ id: terminal.id });
      const from = Math.max(outputBytes - config.scrollback, 0);
      return (socket) =>
        void serveTerminal(socket, { sandbox, terminal, logs, followers, from, log: request.log });
    },
  };
}

function onAbort(signal: AbortSignal, act: () => void): void {
  if (signal.aborted) act();
  else signal.addEventListener("abort", act, { once: true });
}

/** @throws SandboxError invalid_argument for a name that is broken, or too long. */
function sessionName(encoded = ""): string {
  try {
    const name = decodeURIComponent(encoded);
    if (name.length <= MAX_SESSION_NAME && !/\p{Cc}/u.test(name)) return name;
  } catch {
    // Refused below.
  }
  throw new SandboxError("session_id_invalid", `a session's name has up to ${MAX_SESSION_NAME} characters`);
}
