import {
  CloseCode,
  type LiveSandbox,
  type Logger,
  sendMessage,
  takeMessages,
  unlessAborted,
  type WebSocket,
} from "@coppice/core";
import type { Commands, StartedCommand } from "@coppice/plugin-commands";
import { exitCodeOf } from "../commands/command-body.js";
import type { LogFollowers } from "../logs/log-followers.js";
import { exitFrame, outputFrame, parseFrame } from "./frames.js";

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
