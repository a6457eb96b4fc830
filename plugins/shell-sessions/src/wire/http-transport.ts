import { Readable } from "node:stream";
import {
  type Clock,
  isTurnOver,
  laterTurn,
  type Logger,
  type PluginContext,
  readJsonText,
  requestOf,
  type Router,
  targetOf,
} from "@coppice/core";
import { bytesJson, withKeepalives } from "@coppice/plugin-commands";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { type Dispatch, errorEvent, type ShellAnswer, type ShellRoute } from "./route.js";
import type { ShellAccess } from "./shell-access.js";
import { errorAnswer } from "./shell-errors.js";

interface HttpTransportOptions {
  readonly routes: readonly ShellRoute[];
  readonly dispatch: Dispatch;
  readonly access: ShellAccess;
  readonly clock: Clock;
  readonly config: ShellSessionsConfig;
}

/** Serves the routes over HTTP, streams of events as server-sent events. */
export function mountHttp(
  router: ReturnType<PluginContext<unknown>["http"]>,
  { routes, access, ...options }: HttpTransportOptions,
): void {
  for (const prefix of access.prefixes) {
    for (const route of routes) {
      // A base URL has no slash at its end.
      const path = route.path === "/" && prefix !== "" ? prefix : prefix + route.path;
      router.register(path, [route.method], (ctx) => serve(ctx, route, { access, ...options }));
    }
  }
}

type RouteContext = Parameters<Parameters<Router["use"]>[0]>[0];

async function serve(
  ctx: RouteContext,
  route: ShellRoute,
  { dispatch, access, clock, config }: Omit<HttpTransportOptions, "routes">,
): Promise<void> {
  const { log, signal, url, headers } = requestOf(ctx);
  const sandbox = targetOf(ctx);
  let answer: ShellAnswer;
  try {
    const bytes = route.method === "POST" ? await readJsonText(ctx.req, config.maxBody) : undefined;
    // To join, to decode, to parse and to write a long one takes some milliseconds each.
    if (isTurnOver()) await laterTurn(sandbox);
    const text = bytes?.toString();
    if (isTurnOver()) await laterTurn(sandbox);
    const body = text === undefined ? undefined : parsed(text);
    if (isTurnOver()) await laterTurn(sandbox);
    const headerSession = access.sessionOf(sandbox.record.accessToken, { headers, url });
    const { searchParams: query } = url;
    answer = await dispatch(route, {
      sandbox,
      params: ctx.params,
      query,
      body,
      headerSession,
      log,
      signal,
    });
  } catch (error) {
    const { status, body } = errorAnswer(error, log);
    ctx.status = status;
    ctx.body = body;
    return;
  }
  if ("events" in answer) {
    const frames = eventFrames(answer.events, { clock, heartbeatMs: config.heartbeat, log, signal });
    ctx.set({ "content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no" });
    ctx.body = Readable.from(frames, { highWaterMark: 1 });
  } else if ("text" in answer) {
    ctx.type = "text/plain";
    ctx.body = answer.text;
  } else {
    const { json: fields, long, held, isBase64 = false, status = 200 } = answer;
    ctx.status = status;
    ctx.type = "json";
    if (long === undefined) ctx.body = fields;
    else {
      const json = bytesJson({ bytes: long, isText: !isBase64, fields });
      const body = Readable.from(json, { objectMode: false });
      // Not by the generator: one that was never started does not run its `finally`.
      body.once("close", () => void held?.[Symbol.asyncDispose]());
      ctx.body = body;
    }
  }
}

/** The JSON value of a body, undefined for one that is no JSON. */
function parsed(body: string): unknown {
  try {
    return JSON.parse(body) as unknown;
  } catch {
    return undefined;
  }
}

interface EventTextsOptions {
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
async function* eventFrames(events: Events, options: EventTextsOptions): AsyncGenerator<string> {
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
