import { randomUUID } from "node:crypto";
import { posix } from "node:path";
import type { WatchEvent } from "@coppice/core/backend";
import type { DirectoryWatch, DirectoryWatches } from "@coppice/plugin-files";
import { z } from "zod";
import { translated } from "../files/file-errors.js";
import { pathField, pathOf, sessionField } from "../files/session-path.js";
import { event, inputOf, type ShellRequest, type ShellRoute } from "../wire/route.js";

const TYPES = {
  create: "create",
  write: "modify",
  remove: "delete",
  rename: "move_from",
  chmod: "attrib",
} as const satisfies Readonly<Record<WatchEvent["type"], string>>;

const patterns = z.array(z.string().min(1).max(256)).max(100);
const watchBody = z.object({
  path: pathField,
  recursive: z.boolean().nullish(),
  events: z.array(z.enum(["create", "modify", "delete", "move_from", "move_to", "attrib"])).nullish(),
  include: patterns.nullish(),
  exclude: patterns.nullish(),
  ...sessionField,
});

/** What clients get who name neither `include` nor `exclude`. */
const NOT_SHOWN = [".git", "node_modules", ".DS_Store"];
/** Only an upper bound: events, and the end of the watch, end the waiting. */
const WAIT_MS = 60_000;

/** Changes of files, where a plugin watches directories. */
export function watchRoutes({
  watches,
}: {
  readonly watches: DirectoryWatches | undefined;
}): readonly ShellRoute[] {
  if (watches === undefined) return [];
  return [
    {
      method: "POST",
      path: "/api/watch",
      async handle(request) {
        const { path, recursive, ...input } = inputOf(watchBody, request.body);
        const { sandbox, signal } = request;
        const root = pathOf(path, input, request);
        const options = { path: root, recursive: recursive ?? true, allowNetworkMounts: false };
        const watch = await translated(root, watches.open(sandbox, options));
        // The events of a client that has left are not read at all.
        const close = (): void => void watch[Symbol.asyncDispose]();
        signal.addEventListener("abort", close, { once: true });
        if (signal.aborted) close();
        return { events: changes(request, { watch, ...input }) };
      },
    },
  ];
}

interface Changes extends Omit<z.infer<typeof watchBody>, "path" | "recursive"> {
  readonly watch: DirectoryWatch;
}

async function* changes(
  { sandbox, signal }: ShellRequest,
  { watch, events, include, exclude }: Changes,
): AsyncGenerator<ReturnType<typeof event>> {
  await using _watch = watch;
  const hidden = exclude ?? (include ? [] : NOT_SHOWN);
  const isWanted = (name: string, type: (typeof TYPES)[WatchEvent["type"]]): boolean =>
    (events?.includes(type) ?? true) &&
    (!include?.length || isMatched(name, include)) &&
    !isMatched(name, hidden);
  yield event("watching", { path: watch.path, watchId: randomUUID() });
  for (;;) {
    await watch.wait(WAIT_MS, signal);
    if (signal.aborted) return;
    for (const { name, type } of watch.take()) {
      const eventType = TYPES[type];
      if (!isWanted(name, eventType)) continue;
      const path = posix.join(watch.path, name);
      const info = await sandbox.runtime.files.stat(path).catch(() => undefined);
      yield event("event", { eventType, path, isDirectory: info?.kind === "directory" });
    }
  }
}

/** True when a pattern is that of the path, of one of its names, or of a directory above. */
function isMatched(path: string, all: readonly string[]): boolean {
  const names = path.split("/");
  const paths = names.map((_, index) => names.slice(0, index + 1).join("/"));
  return all.some((pattern) => [...names, ...paths].some((each) => posix.matchesGlob(each, pattern)));
}
