import { channel, tracingChannel } from "node:diagnostics_channel";
import type { IncomingHttpHeaders } from "node:http";

/**
 * Work whose time a trace shows. Whoever makes traces subscribes to the tracing channel `coppice:work` of
 * `node:diagnostics_channel`, whose messages these are, and fills the headers that `coppice:trace-headers` carries.
 */
export interface TracedWork {
  /** One of few, whatever clients send: `request`, `sandbox.create`, `provision`. */
  readonly name: string;
  /** Headers of the request that asks for it, in which a client's trace may be named. */
  readonly headers?: IncomingHttpHeaders;
  /** True for what is done in the background because of the work that runs, and is no part of it. */
  readonly isApart?: boolean;
  /** May be completed until it ends. */
  readonly attributes: Record<string, string | number | undefined>;
  /** Why it failed. */
  readonly error?: unknown;
}

const work = tracingChannel<unknown, TracedWork>("coppice:work");
const outgoing = channel("coppice:trace-headers");

/** True when somebody makes traces: others need not collect what nobody reads. */
export function isTraced(): boolean {
  return work.hasSubscribers;
}

/** Runs a piece of work, as a part of the work that it is called by. */
export function traced<T>(
  name: string,
  run: () => Promise<T>,
  about: Partial<Pick<TracedWork, "headers" | "isApart" | "attributes">> = {},
): Promise<T> {
  if (!work.hasSubscribers) return run();
  return work.tracePromise(run, { name, attributes: {}, ...about });
}

/** Headers that name the trace of the work that runs, for a request to another server. None without traces. */
export function traceHeaders(): Readonly<Record<string, string>> {
  const headers: Record<string, string> = {};
  if (outgoing.hasSubscribers) outgoing.publish(headers);
  return headers;
}
