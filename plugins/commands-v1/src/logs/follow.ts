import { type Commands, type OutputPage, pageJson, type StartedCommand } from "@coppice/plugin-commands";
import { exitCodeOf } from "../commands/command-body.js";
import type { LogFollowers } from "./log-followers.js";

export interface FollowOptions {
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
export async function* followLog(options: FollowOptions): AsyncGenerator<Buffer> {
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
