import { setTimeout as delay } from "node:timers/promises";
import { type Commands, type LogPage, pageBytes, type StartedCommand } from "@coppice/plugin-commands";
import { exitCodeOf } from "../commands/command-body.js";
import type { Growth } from "./growth.js";

export interface FollowOptions {
  readonly logs: ReturnType<Commands["log"]>;
  readonly id: string;
  readonly cursor: number;
  readonly limitBytes: number;
  readonly isText: boolean;
  /** The command, while it is in the table. */
  readonly running: StartedCommand | undefined;
  readonly growth: Growth;
  readonly heartbeatMs: number;
  readonly signal: AbortSignal;
}

/** The fields of a page that a client reads the next one by. */
export function pageBody(page: LogPage, isText: boolean) {
  const { bytes, nextCursor } = pageBytes(page, { isText });
  return {
    bytes: Buffer.from(bytes).toString(isText ? "utf-8" : "base64"),
    next_cursor: nextCursor,
    ...(page.truncatedBefore !== undefined && { truncated_before: page.truncatedBefore }),
  };
}

/**
 * A log as server-sent events, from a cursor to the end of the command: `log` with the bytes and the next cursor, which is
 * also the event's id, and `end`. Each page is read when the client has taken the one before.
 */
export async function* followLog(options: FollowOptions): AsyncGenerator<string> {
  const { logs, id, limitBytes, isText, running, growth, heartbeatMs, signal } = options;
  using watched = running && growth.watch(running);
  let { cursor } = options;
  // The client learns at once that it follows.
  yield ": following\n\n";
  while (!signal.aborted) {
    const grown = watched?.grown();
    const page = await logs.page(id, { cursor, limitBytes });
    const body = pageBody(page, isText);
    const { command } = page;
    if (body.next_cursor > cursor) {
      cursor = body.next_cursor;
      yield `event: log\nid: ${cursor}\ndata: ${JSON.stringify(body)}\n\n`;
    } else if (command.phase !== "running") {
      const end = { phase: command.phase, exit_code: exitCodeOf(command) };
      yield `event: end\ndata: ${JSON.stringify(end)}\n\n`;
      return;
    } else if (!(await isWithin(grown, heartbeatMs, signal))) yield ": heartbeat\n\n";
  }
}

/** True when the promise resolves in time. Also false when the signal aborts. */
async function isWithin(promise: Promise<void> | undefined, timeoutMs: number, signal: AbortSignal) {
  const over = new AbortController();
  const waiting = AbortSignal.any([signal, over.signal]);
  const late = delay(timeoutMs, false, { signal: waiting }).catch(() => false);
  try {
    return await Promise.race([late, ...(promise === undefined ? [] : [promise.then(() => true)])]);
  } finally {
    over.abort();
  }
}
