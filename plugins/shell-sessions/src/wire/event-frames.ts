import type { Clock, Logger } from "@coppice/core";
import { withKeepalives } from "@coppice/plugin-commands";
import { errorAnswer } from "./shell-errors.js";
import { errorEvent } from "./route.js";

export interface EventTextsOptions {
  readonly clock: Clock;
  /** Silence after which there is an empty text. */
  readonly heartbeatMs: number;
  readonly log: Logger;
  readonly signal: AbortSignal;
}

type Events = AsyncIterable<Readonly<Record<string, unknown>>>;

/** Events in JSON, each when the one before was taken, and empty texts in silence. An error becomes the last event. */
export async function* eventTexts(
  events: Events,
  { clock, heartbeatMs, log, signal }: EventTextsOptions,
): AsyncGenerator<string> {
  const source = withKeepalives(withError(events, { log, signal }), { intervalMs: heartbeatMs, clock });
  for await (const value of source) yield value === undefined ? "" : JSON.stringify(value);
}

/** Events as server-sent events. */
export async function* eventFrames(events: Events, options: EventTextsOptions): AsyncGenerator<string> {
  for await (const text of eventTexts(events, options)) {
    yield text === "" ? ": heartbeat\n\n" : `data: ${text}\n\n`;
  }
}

/** The events, and one for the error that ends them, unless the client has left. */
async function* withError(
  events: Events,
  { log, signal }: Pick<EventTextsOptions, "log" | "signal">,
): AsyncGenerator<Readonly<Record<string, unknown>>> {
  try {
    yield* events;
  } catch (error) {
    if (!signal.aborted) yield errorEvent(String(errorAnswer(error, log).body["message"]));
  }
}
