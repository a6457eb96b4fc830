import { once } from "node:events";
import type { IncomingMessage, ServerResponse } from "node:http";
import { type Clock, holdBytes, isTurnOver, laterTurn, releaseBytes, unlessAborted } from "@coppice/core";
import { END_LINE, KEEPALIVE_LINE, lineOf, MAX_COPY_BYTES } from "./event-line.js";
import type { ExecutionEvent } from "../kernel/execution-event.js";
import { outputBytes } from "../kernel/output-limit.js";

interface ExecutionStreamOptions {
  /** The sandbox of the execution. */
  readonly sender: Parameters<typeof laterTurn>[0];
  readonly clock: Clock;
  readonly keepaliveMs: number;
  readonly signal: AbortSignal;
  /** The request, which holds what its client has not taken. */
  readonly message: IncomingMessage;
}

/** Answers 200 at once, then a line per event at the client's pace. A client that leaves ends it without error. */
export async function streamExecution(
  response: ServerResponse,
  events: AsyncIterable<ExecutionEvent>,
  { sender, clock, keepaliveMs, message, signal }: ExecutionStreamOptions,
): Promise<void> {
  response.writeHead(200);
  response.flushHeaders();
  let lastWriteMs = clock.now();
  let isWithinLine = false;
  let cancelTimer = (): void => undefined;
  // One timer for all lines: most executions write far more often than it fires.
  const armKeepalive = (delayMs: number): void => {
    cancelTimer = clock.after(delayMs, () => {
      const silentMs = clock.now() - lastWriteMs;
      // A client that does not read has enough queued: keepalives would only pile up.
      if (silentMs >= keepaliveMs && !response.writableNeedDrain && !isWithinLine) {
        response.write(KEEPALIVE_LINE);
        lastWriteMs = clock.now();
        armKeepalive(keepaliveMs);
      } else armKeepalive(silentMs >= keepaliveMs ? keepaliveMs : keepaliveMs - silentMs);
    });
  };
  armKeepalive(keepaliveMs);
  try {
    for await (const event of events) {
      if (signal.aborted) return;
      lastWriteMs = clock.now();
      isWithinLine = true;
      let isLent = false;
      const bytes = outputBytes(event);
      holdBytes(message, bytes);
      for (const piece of lineOf(event)) {
        isLent ||= piece.length > MAX_COPY_BYTES;
        if (!response.write(piece)) await once(response, "drain", { signal });
        if (isTurnOver()) await laterTurn(sender);
      }
      // The memory of the event is reused with the next one.
      if (isLent && response.writableLength > 0) await flushed(response, signal);
      releaseBytes(message, bytes);
      isWithinLine = false;
    }
    if (!signal.aborted) response.end(END_LINE);
  } catch (error) {
    if (!signal.aborted) throw error;
  } finally {
    cancelTimer();
  }
}

/** Resolves when everything is written. Rejects when the signal is aborted. */
function flushed(response: ServerResponse, signal: AbortSignal): Promise<void> {
  // The callback of an empty write runs after all earlier ones, and nothing is sent.
  return unlessAborted(signal, () => new Promise((resolve) => response.write("", () => resolve())));
}
