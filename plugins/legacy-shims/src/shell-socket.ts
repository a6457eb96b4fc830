import {
  CloseCode,
  type LiveSandbox,
  type Logger,
  sendMessage,
  takeMessages,
  type WebSocket,
} from "@coppice/core";
import { describeExit, type Output } from "@coppice/core/backend";
import type { StartedCommand } from "@coppice/plugin-commands";
import { parseClientFrame } from "./client-frame.js";
import type { LegacyShimsConfig } from "./legacy-shims-config.js";
import { LineFrames } from "./line-frames.js";

export interface ShellOptions {
  readonly sandbox: LiveSandbox;
  readonly command: StartedCommand;
  readonly output: AsyncIterable<Output>;
  /** `json`: texts over pipes. `pty`: a terminal, whose bytes are sent unchanged. */
  readonly dialect: "json" | "pty";
  readonly config: Pick<LegacyShimsConfig, "maxLine">;
  readonly log: Logger;
}

/** Connects a WebSocket and a shell until one of them ends. Never rejects. */
export async function serveShell(socket: WebSocket, options: ShellOptions): Promise<void> {
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
