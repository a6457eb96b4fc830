import { type Clock, type Logger, SandboxError, unlessAborted } from "@coppice/core";
import type { Commands, StartedCommand } from "@coppice/plugin-commands";
import { WebSocket } from "ws";
import { exitCodeOf } from "../commands/command-body.js";
import type { Growth } from "../logs/growth.js";
import { exitFrame, outputFrame, parseFrame, PING } from "./frames.js";

export interface ServeTerminalOptions {
  readonly terminal: StartedCommand;
  readonly logs: ReturnType<Commands["log"]>;
  readonly growth: Growth;
  /** Offset of the first byte of output to send. */
  readonly from: number;
  readonly clock: Clock;
  readonly pingIntervalMs: number;
  readonly log: Logger;
}

// RFC 6455, 7.4.1.
const CLOSE_NORMAL = 1000;
const CLOSE_GOING_AWAY = 1001;
const CLOSE_INVALID = 1007;
const CLOSE_FAILED = 1011;
const PAGE_BYTES = 64 * 1024;

/** Connects a WebSocket and a terminal until one of them ends. Never rejects. */
export async function serveTerminal(socket: WebSocket, options: ServeTerminalOptions): Promise<void> {
  const { terminal, log } = options;
  // Broken frames and lost connections: the socket closes, and that is handled.
  socket.on("error", () => undefined);
  takeInput(socket, terminal);
  startPings(socket, options);
  try {
    if (!(await sendOutput(socket, options))) return;
    const code = exitCodeOf(terminal);
    if (code === null) {
      socket.close(CLOSE_GOING_AWAY, "the sandbox has ended");
      return;
    }
    await send(socket, exitFrame(code));
    socket.close(CLOSE_NORMAL);
  } catch (error) {
    if (socket.readyState !== WebSocket.OPEN) return;
    log.error({ err: error }, "serving a terminal failed");
    socket.close(CLOSE_FAILED);
  }
}

/**
 * Sends output from the log, at the client's pace: a slow client holds neither the terminal nor other clients, and takes
 * the memory of one page. @returns false when the client has left.
 */
async function sendOutput(
  socket: WebSocket,
  { terminal, logs, growth, from }: ServeTerminalOptions,
): Promise<boolean> {
  const left = new AbortController();
  socket.once("close", () => left.abort());
  using watched = growth.watch(terminal);
  for (let cursor = from; socket.readyState === WebSocket.OPEN;) {
    const grown = watched.grown();
    const page =
      watched.recent(cursor, PAGE_BYTES) ??
      (await logs.page(terminal.id, { cursor, limitBytes: PAGE_BYTES }));
    const { pieces, nextCursor, command } = page;
    if (nextCursor > cursor) {
      cursor = nextCursor;
      await send(socket, outputFrame(Buffer.concat(pieces.map(({ data }) => data))));
    } else if (command.phase !== "running") return true;
    // Not by a race with a promise of the close: it would keep the reactions of all waits.
    else await unlessAborted(left.signal, () => grown).catch(() => undefined);
  }
  return false;
}

/** Resolves when the bytes were handed on, or the connection is lost: its close follows. */
function send(socket: WebSocket, data: Uint8Array): Promise<void> {
  return new Promise((resolve) => socket.send(data, () => resolve()));
}

/** Writes the client's input, one message after the other, as fast as the terminal takes it. */
function takeInput(socket: WebSocket, terminal: StartedCommand): void {
  let last = Promise.resolve();
  let waiting = 0;
  socket.on("message", (message: Buffer, isBinary: boolean) => {
    if (!isBinary) return;
    waiting += 1;
    socket.pause();
    last = last
      .then(() => handle(message))
      .finally(() => {
        waiting -= 1;
        if (waiting === 0) socket.resume();
      });
  });

  async function handle(message: Buffer): Promise<void> {
    try {
      const frame = parseFrame(message);
      if (frame.type === "input") await terminal.write(frame.data);
      else if (frame.type === "resize") await terminal.resize({ columns: frame.columns, rows: frame.rows });
    } catch (error) {
      const isInvalid = error instanceof SandboxError && error.code === "invalid_argument";
      // Any other error means that the terminal has just ended, which its output reports.
      if (isInvalid) socket.close(CLOSE_INVALID, error.message);
    }
  }
}

/** Closes a connection whose client says nothing for a whole interval: no frame, and no pong. */
function startPings(socket: WebSocket, { clock, pingIntervalMs }: ServeTerminalOptions): void {
  let isAlive = true;
  const note = (): void => {
    isAlive = true;
  };
  for (const event of ["message", "pong"]) socket.on(event, note);
  let cancel = (): void => undefined;
  const next = (): void => {
    cancel = clock.after(pingIntervalMs, () => {
      // An answer waits behind input that the terminal does not take, and a ping behind output that the client does not.
      if (!isAlive && !socket.isPaused && socket.bufferedAmount === 0) return socket.terminate();
      isAlive = false;
      if (socket.readyState === WebSocket.OPEN) {
        socket.send(PING);
        socket.ping();
      }
      return next();
    });
  };
  next();
  socket.once("close", () => cancel());
}
