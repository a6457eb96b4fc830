import { type Clock, type Logger, SandboxError } from "@coppice/core";
import type { Output } from "@coppice/core/backend";
import { describeExit, type StartedCommand } from "@coppice/plugin-commands";
import { WebSocket } from "ws";
import { parseClientFrame } from "./client-frame.js";
import type { LegacyShimsConfig } from "./legacy-shims-config.js";
import { LineFrames } from "./line-frames.js";

export interface ShellOptions {
  readonly command: StartedCommand;
  readonly output: AsyncIterable<Output>;
  /** `json`: texts over pipes. `pty`: a terminal, whose bytes are sent unchanged. */
  readonly dialect: "json" | "pty";
  readonly clock: Clock;
  readonly config: Pick<LegacyShimsConfig, "maxLine" | "pingInterval">;
  readonly log: Logger;
}

// RFC 6455, 7.4.1.
const CLOSE_NORMAL = 1000;
const CLOSE_INVALID = 1007;
const CLOSE_FAILED = 1011;

/** Connects a WebSocket and a shell until one of them ends. Never rejects. */
export async function serveShell(socket: WebSocket, options: ShellOptions): Promise<void> {
  const { command, log } = options;
  // Broken frames and lost connections: the socket closes, and that is handled.
  socket.on("error", () => undefined);
  takeInput(socket, command);
  const stopPings = startPings(socket, options);
  socket.once("close", stopPings);
  try {
    await sendOutput(socket, options);
    const status = command.end?.exit === undefined ? "" : describeExit(command.end.exit).status;
    socket.close(CLOSE_NORMAL, status);
  } catch (error) {
    if (socket.readyState !== WebSocket.OPEN) return;
    log.error({ err: error }, "serving a shell failed");
    socket.close(CLOSE_FAILED);
  }
}

async function sendOutput(socket: WebSocket, { command, output, ...options }: ShellOptions): Promise<void> {
  if (options.dialect === "pty") {
    for await (const { data } of output) await send(socket, data);
    return;
  }
  const frames = new LineFrames(options.config.maxLine);
  for await (const piece of output) {
    const frame = frames.push(piece);
    if (frame !== undefined) await send(socket, frame);
  }
  for (const frame of frames.finish()) await send(socket, frame);
  const exit = command.end?.exit;
  if (exit === undefined) return;
  await send(socket, JSON.stringify({ type: "exit", code: describeExit(exit).exitCode }));
}

/** Resolves when the bytes were handed on: until then the command is not read. */
function send(socket: WebSocket, data: string | Uint8Array): Promise<void> {
  return new Promise((resolve, reject) => {
    socket.send(data, { binary: typeof data !== "string" }, (error) => (error ? reject(error) : resolve()));
  });
}

/** Writes the client's messages, one after the other, as fast as the shell reads. */
function takeInput(socket: WebSocket, command: StartedCommand): void {
  let last = Promise.resolve();
  let waiting = 0;
  socket.on("message", (message: Buffer, isBinary: boolean) => {
    waiting += 1;
    // Messages that were already received still arrive: at most one buffer of them.
    socket.pause();
    last = last
      .then(() => handle(message, isBinary))
      .finally(() => {
        waiting -= 1;
        if (waiting === 0) socket.resume();
      });
  });

  async function handle(message: Buffer, isBinary: boolean): Promise<void> {
    try {
      const frame = parseClientFrame(message, isBinary);
      if (frame.type === "input") await command.write(frame.data);
      else if (frame.type === "resize" && command.request.terminal !== undefined) {
        await command.resize({ columns: frame.columns, rows: frame.rows });
      }
    } catch (error) {
      const isInvalid = error instanceof SandboxError && error.code === "invalid_argument";
      // Any other error means that the shell has just ended, which its output reports.
      if (isInvalid) socket.close(CLOSE_INVALID, error.message);
    }
  }
}

function startPings(socket: WebSocket, { clock, config }: ShellOptions): () => void {
  let isAlive = true;
  let cancel = (): void => undefined;
  socket.on("pong", () => {
    isAlive = true;
  });
  const next = (): void => {
    cancel = clock.after(config.pingInterval, () => {
      // A pong has to wait behind input that the shell does not read, and a ping behind output that the client does
      // not.
      const isHeldUp = socket.isPaused || socket.bufferedAmount > 0;
      if (!isAlive && !isHeldUp) {
        socket.terminate();
        return;
      }
      isAlive = false;
      if (socket.readyState === WebSocket.OPEN) socket.ping();
      next();
    });
  };
  next();
  return () => cancel();
}
