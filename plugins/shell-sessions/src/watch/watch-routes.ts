import { randomUUID } from "node:crypto";
import { posix } from "node:path";
import type { Clock, LiveSandbox } from "@coppice/core";
import type { WatchEvent } from "@coppice/core/backend";
import type { DirectoryWatch, DirectoryWatches, WatchRequest } from "@coppice/plugin-files";
import { z } from "zod";
import { translated } from "../files/file-errors.js";
import { pathField, pathOf, sessionField } from "../files/session-path.js";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { event, inputOf, type ShellRequest, type ShellRoute, success } from "../wire/route.js";
import { isInGlob, isNameInGlob } from "./glob.js";

/** Names of events as clients know them. */
const TYPES = {
  create: "create",
  write: "modify",
  remove: "delete",
  rename: "move_from",
  chmod: "attrib",
} as const satisfies Readonly<Record<WatchEvent["type"], string>>;

/** Each event is compared with all of them. */
const MAX_PATTERNS_LENGTH = 2048;
const patterns = z
  .array(
    z
      .string()
      .min(1)
      .max(256)
      .regex(/^[^[\]{}]*$/, "patterns have the wildcards *, ? and ** alone"),
  )
  .max(100)
  .refine(
    (all) => all.join("").length <= MAX_PATTERNS_LENGTH,
    `the patterns have more than ${MAX_PATTERNS_LENGTH} characters`,
  );

const watchBody = z.object({
  path: pathField,
  recursive: z.boolean().nullish(),
  events: z.array(z.enum(["create", "modify", "delete", "move_from", "move_to", "attrib"])).nullish(),
  include: patterns.nullish(),
  exclude: patterns.nullish(),
  ...sessionField,
});

type Filter = Pick<z.infer<typeof watchBody>, "events" | "include" | "exclude">;

/** What clients do not get who name neither `include` nor `exclude`. */
const NOT_SHOWN = [".git", "node_modules", ".DS_Store"];

/** The events that a request asks for. */
function eventFilter({ events, include, exclude }: Filter): (event: WatchEvent) => boolean {
  const hidden = exclude ?? (include ? [] : NOT_SHOWN);
  return ({ name, type }) =>
    (events?.includes(TYPES[type]) ?? true) &&
    (!include?.length || isMatched(name, include)) &&
    !isMatched(name, hidden);
}

/** True when a pattern is that of the path, of one of its names, or of a directory above. */
function isMatched(path: string, all: readonly string[]): boolean {
  const names = path.split("/");
  return all.some((pattern) => isInGlob(path, pattern) || names.some((name) => isNameInGlob(name, pattern)));
}

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

interface ChangeState {
  readonly id: string;
  readonly watch: DirectoryWatch;
  revision: number;
  /** Stops the timer that ends the watch. */
  cancel: () => void;
}

interface ChangeCheck {
  /** Equal for equal requests. */
  readonly key: string;
  readonly request: WatchRequest;
  readonly isWanted: (event: WatchEvent) => boolean;
  /** Version that an earlier check told. */
  readonly since: string | undefined;
}

type ChangeReport =
  | { readonly status: "unchanged" | "changed"; readonly version: string }
  | { readonly status: "resync"; readonly reason: "expired" | "restarted"; readonly version: string };

/** Watches that count changes between two questions, until nobody has asked for some time. */
class ChangeStates {
  readonly #watches: DirectoryWatches;
  readonly #clock: Clock;
  readonly #keptMs: number;
  /** Tells versions of this server from those of earlier ones. */
  readonly #server = randomUUID();
  readonly #states = new WeakMap<LiveSandbox, Map<string, Promise<ChangeState>>>();
  #count = 0;

  constructor({ watches, clock, keptMs }: { watches: DirectoryWatches; clock: Clock; keptMs: number }) {
    this.#watches = watches;
    this.#clock = clock;
    this.#keptMs = keptMs;
  }

  /** @throws SandboxError as `DirectoryWatches.open` */
  async check(sandbox: LiveSandbox, { key, since, ...wanted }: ChangeCheck): Promise<ChangeReport> {
    const states = this.#states.get(sandbox) ?? new Map<string, Promise<ChangeState>>();
    this.#states.set(sandbox, states);
    let opening = states.get(key);
    if (opening === undefined) {
      const forget = (): void => void states.delete(key);
      opening = this.#open(sandbox, { ...wanted, forget });
      states.set(key, opening);
      opening.catch(forget);
    }
    const state = await opening;
    this.#keep(state);
    const version = `${state.id}.${state.revision}`;
    if (since === undefined || since === version) return { status: "unchanged", version };
    if (since.startsWith(`${state.id}.`)) return { status: "changed", version };
    return {
      status: "resync",
      reason: since.startsWith(`${this.#server}.`) ? "expired" : "restarted",
      version,
    };
  }

  async #open(
    sandbox: LiveSandbox,
    {
      request,
      isWanted,
      forget,
    }: Pick<ChangeCheck, "request" | "isWanted"> & { readonly forget: () => void },
  ): Promise<ChangeState> {
    const watch = await this.#watches.open(sandbox, request);
    const id = `${this.#server}.${this.#count++}`;
    const state: ChangeState = { id, watch, revision: 0, cancel: () => undefined };
    void this.#follow(state, isWanted).finally(() => {
      state.cancel();
      forget();
    });
    return state;
  }

  /** Ends with the watch: a later question is told that changes may have been missed. */
  async #follow(state: ChangeState, isWanted: (event: WatchEvent) => boolean): Promise<void> {
    const never = new AbortController().signal;
    try {
      for (;;) {
        await state.watch.wait(this.#keptMs, never);
        if (state.watch.take().some(isWanted)) state.revision++;
      }
    } catch {
      await state.watch[Symbol.asyncDispose]();
    }
  }

  #keep(state: ChangeState): void {
    state.cancel();
    state.cancel = this.#clock.after(this.#keptMs, () => void state.watch[Symbol.asyncDispose]());
  }
}
