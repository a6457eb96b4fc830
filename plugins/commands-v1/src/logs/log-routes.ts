import type { IncomingMessage, ServerResponse } from "node:http";
import { Readable } from "node:stream";
import {
  parseInput,
  queryNumber,
  type RequestCarrier,
  requestOf,
  type Router,
  type Sandboxes,
  sandboxesOf,
  type Tenants,
  tenantOf,
  SandboxError,
  Shares,
} from "@coppice/core";
import {
  type Commands,
  pageBody,
  pageJson,
  logPageQuery,
  type OutputPage,
  type StartedCommand,
} from "@coppice/plugin-commands";
import { z } from "zod";
import { exitCodeOf } from "../commands/command-body.js";
import type { CommandsV1Config } from "../commands-v1-config.js";
import type { NamedSandboxes } from "../sandboxes/named-sandboxes.js";
import type { LogFollowers } from "./log-followers.js";

/** Room for pages of logs in the memory of the server: clients may ask for many, and take none. */
export class PageMemory {
  readonly #taken: Shares;

  constructor(maxBytes: number, tenants?: Tenants) {
    this.#taken = new Shares(maxBytes, tenants);
  }

  /**
   * Room for a page, until the disposal.
   * @throws SandboxError unavailable while other pages take all of it, or all that is the tenant's.
   */
  take(
    tenant: string,
    bytes: number,
  ): Disposable & {
    /** Gives back what the page does not need. */
    readonly shrink: (toBytes: number) => void;
  } {
    if (this.#taken.take(tenant, bytes) !== undefined) {
      throw new SandboxError("server_busy", "too many pages of logs wait for their clients");
    }
    let taken = bytes;
    const shrink = (toBytes: number): void => {
      const kept = Math.min(taken, Math.max(toBytes, 0));
      this.#taken.give(tenant, taken - kept);
      taken = kept;
    };
    return { shrink, [Symbol.dispose]: () => shrink(0) };
  }
}

interface LogRoutesOptions {
  readonly sandboxes: Sandboxes;
  readonly named: NamedSandboxes;
  readonly commands: Commands;
  readonly followers: LogFollowers;
  readonly tenants: Tenants;
  readonly config: CommandsV1Config;
}

const wholeNumber = queryNumber("a number of bytes");
const followHeaders = z.object({ "last-event-id": wholeNumber.optional() });
const flag = z.enum(["true", "false"]).default("false");

/** The parts of koa's context that a log is answered by. */
type LogContext = Extract<RequestCarrier, { readonly state: unknown }> & {
  readonly req: IncomingMessage;
  readonly res: ServerResponse;
  body: unknown;
  type: string;
  set(name: string, value: string): void;
};

/** Answers with the log of a command: page by page, or followed as server-sent events. */
export type LogAnswer = (
  ctx: LogContext,
  command: { readonly sandboxId: string; readonly id: string },
) => Promise<void>;

/** Route of a command's log. */
export function mountLogs(
  router: Router,
  {
    answerLog,
    named,
    config,
  }: Pick<LogRoutesOptions, "named" | "config"> & { readonly answerLog: LogAnswer },
): void {
  router.get(`${config.basePath}/sandboxes/:id/commands/:cid/logs`, async (ctx) => {
    const sandboxId = await named.knownId(ctx, ctx.params["id"]);
    await answerLog(ctx, { sandboxId, id: ctx.params["cid"] ?? "" });
  });
}

export function logAnswer({
  sandboxes,
  commands,
  followers,
  tenants,
  config,
}: Omit<LogRoutesOptions, "named">): LogAnswer {
  const { heartbeat, maxEvent } = config;
  const pageRoom = new PageMemory(config.maxUnsentPages, tenants);
  const logQuery = logPageQuery(config).extend({
    // Clients send `stream=false` with a cursor, and `follow=true` for events.
    stream: flag,
    follow: flag,
  });

  return async (ctx, { sandboxId, id }) => {
    const { signal, url } = requestOf(ctx);
    const { cursor, limit, encoding, follow, stream } = parseInput(
      logQuery,
      Object.fromEntries(url.searchParams),
    );
    const isText = encoding === "utf-8";
    const logs = commands.log(sandboxId);
    if (follow === "false" && stream === "false") {
      const room = pageRoom.take(tenantOf(ctx), limit);
      const giveBack = (): void => room[Symbol.dispose]();
      ctx.res.once("close", giveBack);
      if (ctx.res.destroyed) giveBack();
      const page = await logs.page(id, { cursor, limitBytes: limit });
      room.shrink(page.nextCursor - cursor);
      const { phase, outputBytes } = page.command;
      // Clients stop at the first page with another phase: until the last one it is `running`.
      const isMore = page.nextCursor > cursor && page.nextCursor < outputBytes;
      const fields = isMore
        ? { phase: "running", exit_code: null }
        : { phase, exit_code: exitCodeOf(page.command) };
      const answer = pageJson(page, { isText, fields });
      ctx.type = "json";
      ctx.body = await pageBody(answer);
      return;
    }
    // Refused now: an answer that has begun has its status.
    await logs.find({ id });
    const { "last-event-id": last } = parseInput(followHeaders, ctx.req.headers);
    const sandbox = sandboxesOf(ctx, sandboxes).find(sandboxId);
    const events = followLog({
      logs,
      id,
      cursor: last ?? cursor,
      limitBytes: Math.min(limit, maxEvent),
      isText,
      running: sandbox && commands.list(sandbox).find((command) => command.id === id),
      followers,
      heartbeatMs: heartbeat,
      signal,
    });
    ctx.type = "text/event-stream";
    ctx.set("cache-control", "no-store");
    // One event at a time: a page may be large, and each client has its own.
    ctx.body = Readable.from(events, { highWaterMark: 1 });
  };
}

interface FollowOptions {
  readonly logs: ReturnType<Commands["log"]>;
  readonly id: string;
  readonly cursor: number;
  readonly limitBytes: number;
  readonly isText: boolean;
  /** The command, while it is in the table. */
  readonly running: StartedCommand | undefined;
  readonly followers: LogFollowers;
  readonly heartbeatMs: number;
  readonly signal: AbortSignal;
}

const FOLLOWING = Buffer.from(": following\n\n");
const HEARTBEAT = Buffer.from(": heartbeat\n\n");

/**
 * A log as server-sent events, from a cursor to the end of the command: `log` with the bytes and the next cursor, which is
 * also the event's id, and `end`. Each page is read when the client has taken the one before.
 */
async function* followLog(options: FollowOptions): AsyncGenerator<Buffer> {
  const { logs, id, limitBytes, isText, running, followers, heartbeatMs, signal } = options;
  using watched = running && followers.watch(running);
  let { cursor } = options;
  // The client learns at once that it follows.
  yield FOLLOWING;
  while (!signal.aborted) {
    const grown = watched?.grown();
    const read = async (): Promise<FollowedPage> => {
      const page = watched?.recent(cursor, limitBytes) ?? (await logs.page(id, { cursor, limitBytes }));
      return eventOf(page, isText);
    };
    const { event, nextCursor, command } = await (watched === undefined
      ? read()
      : watched.share([cursor, limitBytes, isText].join(), read));
    if (nextCursor > cursor) {
      cursor = nextCursor;
      yield* event;
    } else if (command.phase !== "running") {
      const end = { phase: command.phase, exit_code: exitCodeOf(command) };
      yield Buffer.from(`event: end\ndata: ${JSON.stringify(end)}\n\n`);
      return;
    } else if (!(await isWithin(grown, heartbeatMs, signal))) yield HEARTBEAT;
  }
}

interface FollowedPage {
  readonly event: readonly Buffer[];
  readonly nextCursor: number;
  readonly command: OutputPage["command"];
}

async function eventOf(page: OutputPage, isText: boolean): Promise<FollowedPage> {
  const { json, nextCursor, isSmall } = pageJson(page, { isText });
  const parts = [
    Buffer.from(`event: log\nid: ${nextCursor}\ndata: `),
    ...(await Array.fromAsync(json)),
    Buffer.from("\n\n"),
  ];
  const event = isSmall ? [Buffer.concat(parts)] : parts;
  return { event, nextCursor, command: page.command };
}

/**
 * True when the promise resolves in time. Also false when the signal aborts. Without `AbortSignal.any` and a controller:
 * for a thousand followers these would be most of the work.
 */
function isWithin(
  promise: Promise<void> | undefined,
  timeoutMs: number,
  signal: AbortSignal,
): Promise<boolean> {
  return new Promise((resolve) => {
    const settle = (isInTime: boolean): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", giveUp);
      resolve(isInTime);
    };
    const giveUp = (): void => settle(false);
    const timer = setTimeout(giveUp, timeoutMs);
    signal.addEventListener("abort", giveUp, { once: true });
    if (signal.aborted) giveUp();
    void promise?.then(() => settle(true));
  });
}
