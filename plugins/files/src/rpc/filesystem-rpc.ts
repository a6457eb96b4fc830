import { posix } from "node:path";
import type { ConnectRouter, HandlerContext } from "@connectrpc/connect";
import { create } from "@bufbuild/protobuf";
import { SandboxError, basicUser, targetOf } from "@coppice/core";
import type { FileInfo, WatchEvent, WatchEventType } from "@coppice/core/backend";
import { toEntryInfo } from "./entry-info.js";
import type { FilesConfig } from "../files-config.js";
import { explainedAs, translateErrors, UserFiles } from "../service/file-service.js";
import {
  type EntryInfo,
  EntryInfoSchema,
  EventType,
  Filesystem,
  type FilesystemEvent,
  FilesystemEventSchema,
  type WatchDirRequest,
  type CreateWatcherRequest,
} from "../generated/filesystem/filesystem_pb.js";
import type { DirectoryWatch, WatchRequest, Watchers } from "../watch/watchers.js";

const EVENT_TYPES: Readonly<Record<WatchEventType, EventType>> = {
  create: EventType.CREATE,
  write: EventType.WRITE,
  remove: EventType.REMOVE,
  rename: EventType.RENAME,
  chmod: EventType.CHMOD,
};

// User agent of Python SDKs of 2024 (e2b 1.0); later ones send `e2b-python-sdk/<version>`.
const STRICT_USER_AGENT = "connect-python";

// Minimum interval: more frequent requests are served at this pace.
const MIN_KEEPALIVE_MS = 1000;

export function mountFilesystemRpc(
  router: Pick<ConnectRouter, "service">,
  { watchers, config }: { readonly watchers: Watchers; readonly config: FilesConfig },
): void {
  const filesOf = (context: HandlerContext): Promise<UserFiles> => {
    const username = basicUser(context.requestHeader.get("authorization"));
    return translateErrors(UserFiles.of(targetOf(context), username, config), {
      not_found: explainedAs("user_unknown", `invalid username: '${username}'`),
    });
  };
  // The protocol alone decides whether entries come along: events have none.
  const watchersWithEntries = new WeakSet<DirectoryWatch>();

  router.service(Filesystem, {
    async stat({ path }, context) {
      return { entry: entryFor(context, await (await filesOf(context)).stat(path)) };
    },

    async makeDir({ path }, context) {
      return { entry: entryFor(context, await (await filesOf(context)).makeDir(path)) };
    },

    async move({ source, destination }, context) {
      return { entry: entryFor(context, await (await filesOf(context)).move(source, destination)) };
    },

    async listDir({ path, depth }, context) {
      const entries = await (await filesOf(context)).list(path, depth);
      return { entries: entries.map((entry) => entryFor(context, entry)) };
    },

    async remove({ path }, context) {
      await (await filesOf(context)).remove(path);
      return {};
    },

    async *watchDir(request, context) {
      const files = await filesOf(context);
      await using watch = await watchers.open(files.sandbox, toWatchRequest(files, request));
      yield { event: { case: "start", value: {} } };
      const pauseMs = keepaliveOf(context) ?? config.keepalive;
      for (;;) {
        await watch.wait(pauseMs, context.signal);
        // With the reason: the deadline of the request, which the client is told, or the client's departure.
        context.signal.throwIfAborted();
        const events = watch.take();
        if (events.length === 0) yield { event: { case: "keepalive", value: {} } };
        for (const event of events) {
          const value = await toFilesystemEvent(event, request.includeEntry ? { files, watch } : undefined);
          yield { event: { case: "filesystem", value } };
        }
      }
    },

    async createWatcher(request, context) {
      const files = await filesOf(context);
      const watcherId = await watchers.create(files.sandbox, toWatchRequest(files, request));
      if (request.includeEntry) watchersWithEntries.add(watchers.find(files.sandbox, watcherId));
      return { watcherId };
    },

    async getWatcherEvents({ watcherId }, context) {
      const files = await filesOf(context);
      const watch = watchers.find(files.sandbox, watcherId);
      const entries = watchersWithEntries.has(watch) ? { files, watch } : undefined;
      const events: FilesystemEvent[] = [];
      for (const event of watch.take()) events.push(await toFilesystemEvent(event, entries));
      return { events };
    },

    async removeWatcher({ watcherId }, context) {
      await watchers.remove(targetOf(context), watcherId);
      return {};
    },
  });
}

/**
 * The part of an entry that a client can read. E2B's first Python SDKs fail with `has no field named "size"` at every
 * field added later, where all others ignore unknown fields. May go with the older SDK of the tests.
 */
function entryFor({ requestHeader }: HandlerContext, info: FileInfo): EntryInfo {
  const entry = toEntryInfo(info);
  if (requestHeader.get("user-agent") !== STRICT_USER_AGENT) return entry;
  const { name, type, path } = entry;
  return create(EntryInfoSchema, { name, type, path });
}

function toWatchRequest(files: UserFiles, request: WatchDirRequest | CreateWatcherRequest): WatchRequest {
  const { path, recursive, allowNetworkMounts } = request;
  return { path: files.resolve(path), recursive, allowNetworkMounts };
}

/** With `entries`: the entry's current state; absent when it is gone, by its event or by the time it is read. */
async function toFilesystemEvent(
  { name, type }: WatchEvent,
  entries: { readonly files: UserFiles; readonly watch: DirectoryWatch } | undefined,
): Promise<FilesystemEvent> {
  const event = create(FilesystemEventSchema, { name, type: EVENT_TYPES[type] });
  if (entries === undefined || type === "remove" || type === "rename") return event;
  try {
    event.entry = toEntryInfo(await entries.files.stat(posix.join(entries.watch.path, name)));
  } catch (error) {
    if (!(error instanceof SandboxError)) throw error;
  }
  return event;
}

/** Keepalive-Ping-Interval, in seconds on the wire. */
function keepaliveOf(context: HandlerContext): number | undefined {
  const seconds = Number(context.requestHeader.get("keepalive-ping-interval") ?? Number.NaN);
  return seconds > 0 ? Math.max(seconds * 1000, MIN_KEEPALIVE_MS) : undefined;
}
