import { randomUUID } from "node:crypto";
import type { Clock, LiveSandbox } from "@coppice/core";
import type { WatchEvent } from "@coppice/core/backend";
import type { DirectoryWatch, DirectoryWatches, WatchRequest } from "@coppice/plugin-files";

interface ChangeState {
  readonly id: string;
  readonly watch: DirectoryWatch;
  revision: number;
  /** Stops the timer that ends the watch. */
  cancel: () => void;
}

export interface ChangeCheck {
  /** Equal for equal requests. */
  readonly key: string;
  readonly request: WatchRequest;
  readonly isWanted: (event: WatchEvent) => boolean;
  /** Version that an earlier check told. */
  readonly since: string | undefined;
}

export type ChangeReport =
  | { readonly status: "unchanged" | "changed"; readonly version: string }
  | { readonly status: "resync"; readonly reason: "expired" | "restarted"; readonly version: string };

/** Watches that count changes between two questions, until nobody has asked for some time. */
export class ChangeStates {
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
