import { type Clock, fulfilledWithin, type Logger } from "@coppice/core";
import { errorAnswer } from "./shell-errors.js";
import { errorEvent } from "./route.js";

interface EventFramesOptions {
  readonly clock: Clock;
  /** Silence after which the stream gets a comment. */
  readonly heartbeatMs: number;
  readonly log: Logger;
  readonly signal: AbortSignal;
}

const HEARTBEAT = ": heartbeat\n\n";

/** Events as server-sent events, each when the one before was taken. An error becomes the last event. */
export async function* eventFrames(
  events: AsyncIterable<Readonly<Record<string, unknown>>>,
  { clock, heartbeatMs, log, signal }: EventFramesOptions,
): AsyncGenerator<string> {
  const iterator = withError(events, { log, signal });
  try {
    for (;;) {
      const next = iterator.next();
      while (!(await fulfilledWithin(next, { clock, timeoutMs: heartbeatMs }))) yield HEARTBEAT;
      const { done, value } = await next;
      if (done === true) return;
      yield `data: ${JSON.stringify(value)}\n\n`;
    }
  } finally {
    await iterator.return(undefined);
  }
}

/** The events, and one for the error that ends them, unless the client has left. */
export async function* withError(
  events: AsyncIterable<Readonly<Record<string, unknown>>>,
  { log, signal }: Pick<EventFramesOptions, "log" | "signal">,
): AsyncGenerator<Readonly<Record<string, unknown>>> {
  try {
    yield* events;
  } catch (error) {
    if (!signal.aborted) yield errorEvent(String(errorAnswer(error, log).body["message"]));
  }
}
