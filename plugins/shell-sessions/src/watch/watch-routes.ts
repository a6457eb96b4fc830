import { randomUUID } from "node:crypto";
import { posix } from "node:path";
import type { Clock } from "@coppice/core";
import type { WatchEvent } from "@coppice/core/backend";
import type { DirectoryWatch, DirectoryWatches } from "@coppice/plugin-files";
import { z } from "zod";
import { translated } from "../files/file-errors.js";
import { pathOf } from "../files/session-path.js";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { event, inputOf, type ShellRequest, type ShellRoute, success } from "../wire/route.js";
import { ChangeStates } from "./change-states.js";
import { eventFilter, TYPES, watchBody } from "./watch-request.js";

const checkBody = watchBody.extend({ since: z.string().max(256).nullish() });

/** Only an upper bound: events, and the end of the watch, end the waiting. */
const WAIT_MS = 60_000;

interface WatchRoutesOptions {
  /** Undefined where no plugin watches directories. */
  readonly watches: DirectoryWatches | undefined;
  readonly clock: Clock;
  readonly config: Pick<ShellSessionsConfig, "changesKept">;
}

/** Changes of files. */
export function watchRoutes({ watches, clock, config }: WatchRoutesOptions): readonly ShellRoute[] {
  if (watches === undefined) return [];
  const states = new ChangeStates({ watches, clock, keptMs: config.changesKept });
  return [
    {
      method: "POST",
      path: "/api/watch",
      async handle(request) {
        const input = inputOf(watchBody, request.body);
        const { sandbox, signal } = request;
        const wanted = watchOf(input, request);
        const watch = await translated(wanted.path, watches.open(sandbox, wanted));
        // The events of a client that has left are not read at all.
        const close = (): void => void watch[Symbol.asyncDispose]();
        signal.addEventListener("abort", close, { once: true });
        if (signal.aborted) close();
        return { events: changes(request, watch, eventFilter(input)) };
      },
    },
    {
      method: "POST",
      path: "/api/watch/check",
      async handle(request) {
        const { since, ...input } = inputOf(checkBody, request.body);
        const { events, include, exclude } = input;
        const wanted = watchOf(input, request);
        const report = states.check(request.sandbox, {
          key: JSON.stringify([wanted, events, include, exclude]),
          request: wanted,
          isWanted: eventFilter(input),
          since: since ?? undefined,
        });
        return success({ ...(await translated(wanted.path, report)) });
      },
    },
  ];
}

function watchOf({ path, recursive, sessionId }: z.infer<typeof watchBody>, request: ShellRequest) {
  const root = pathOf(path, { sessionId }, request);
  return { path: root, recursive: recursive ?? true, allowNetworkMounts: false };
}

async function* changes(
  { sandbox, signal }: ShellRequest,
  watch: DirectoryWatch,
  isWanted: (event: WatchEvent) => boolean,
): AsyncGenerator<ReturnType<typeof event>> {
  await using _watch = watch;
  yield event("watching", { path: watch.path, watchId: randomUUID() });
  for (;;) {
    await watch.wait(WAIT_MS, signal);
    if (signal.aborted) return;
    for (const { name, type } of watch.take().filter(isWanted)) {
      const path = posix.join(watch.path, name);
      const info = await sandbox.runtime.files.stat(path).catch(() => undefined);
      yield event("event", { eventType: TYPES[type], path, isDirectory: info?.kind === "directory" });
    }
  }
}
