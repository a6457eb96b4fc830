import type { Clock } from "../../kernel/clock.js";
import { SandboxError } from "../../kernel/errors.js";
import { Semaphore } from "../../bounds/semaphore.js";
import { sleep, within } from "../../kernel/time.js";
import type { Logger } from "../../observe/logger.js";
import type { Sandbox } from "../contract/backend.js";
import type { SandboxMetrics } from "../model/sandbox-metrics.js";
import type { SandboxesConfig } from "../model/sandboxes-config.js";

interface TeardownOptions {
  readonly settings: Pick<SandboxesConfig, "destroyTimeout" | "destroyConcurrency">;
  readonly metrics: Pick<SandboxMetrics, "destroyFailures">;
  readonly clock: Clock;
  readonly log: Logger;
}

interface Removal {
  /** Kind and id, for messages. */
  readonly what: "sandbox" | "snapshot" | "volume";
  readonly id: string;
  /** Safe to repeat, also while an earlier call still hangs. */
  readonly run: () => Promise<void>;
}

interface RemovalProgress {
  /** Resolves when nothing of it is left; rejects when the first attempts failed, and more follow. */
  readonly soon: Promise<void>;
  /** Resolves with true when nothing of it is left, with false when this server stopped trying. */
  readonly final: Promise<boolean>;
}

/** After so many failures `soon` rejects. */
const SOON_ATTEMPTS = { sandbox: 3, snapshot: 1, volume: 1 } as const;
const FIRST_DELAY_MS = 200;
const MAX_DELAY_MS = 60_000;

/** Removes sandboxes, snapshots and volumes, a bounded number at a time, and retries as long as the server runs. */
export class Teardown {
  readonly #options: TeardownOptions;
  readonly #turns: Semaphore;
  readonly #stopped = new AbortController();

  constructor(options: TeardownOptions) {
    this.#options = options;
    this.#turns = new Semaphore(options.settings.destroyConcurrency);
  }

  destroy(sandbox: Sandbox): RemovalProgress {
    return this.undo({ what: "sandbox", id: sandbox.id, run: () => sandbox.destroy() });
  }

  undo(undoing: Removal): RemovalProgress {
    const { what, id } = undoing;
    const { promise: soon, resolve, reject } = Promise.withResolvers<void>();
    // A caller that uses `final` alone must not cause an unhandled rejection.
    soon.catch(() => {});
    const final = this.#undo(undoing, reject).then((isGone) => {
      if (isGone) resolve();
      else reject(new SandboxError("destruction_pending", `${what} "${id}" could not be destroyed`));
      return isGone;
    });
    return { soon, final };
  }

  /** Ends the waiting between attempts; the next start removes the rest. */
  stop(): void {
    this.#stopped.abort();
  }

  async #undo({ what, id, run }: Removal, fail: (error: Error) => void): Promise<boolean> {
    const soonAttempts = SOON_ATTEMPTS[what];
    const { clock, log, metrics, settings } = this.#options;
    const timeoutMs = settings.destroyTimeout;
    const overdue = (): Error =>
      new SandboxError("backend_timeout", `still not destroyed after ${timeoutMs} ms`);
    for (let attempt = 1; ; attempt += 1) {
      try {
        // A hanging call is abandoned: it is safe to repeat.
        await this.#turns.run(() => within(run, { clock, timeoutMs, overdue }));
        return true;
      } catch (error) {
        if (what === "sandbox") metrics.destroyFailures.inc();
        log.error({ [what]: id, attempt, err: error }, `destroying a ${what} failed`);
        if (attempt >= soonAttempts) {
          const text = `${what} "${id}" could not be destroyed yet; the server keeps trying`;
          fail(new SandboxError("destruction_pending", text, { cause: error }));
        }
      }
      const delayMs = Math.min(FIRST_DELAY_MS * 2 ** (attempt - 1), MAX_DELAY_MS);
      // Stopped, it makes the rest of the first attempts without a pause.
      await sleep(clock, delayMs, this.#stopped.signal).catch(() => undefined);
      if (this.#stopped.signal.aborted && attempt >= soonAttempts) return false;
    }
  }
}

interface RemovableRecord {
  readonly id: string;
  readonly owner: string;
  readonly state: string;
}

/** Snapshots or volumes by id, each until nothing of it is left. */
export class RemovableRecords<R extends RemovableRecord> extends Map<string, R> {
  /** Removals under way, or to be retried. */
  readonly #removals = new Map<string, Promise<void>>();
  readonly #remove: (id: string, run: () => Promise<void>) => Promise<void>;

  constructor(teardown: Teardown, what: "snapshot" | "volume") {
    super();
    this.#remove = (id, run) => teardown.undo({ what, id, run }).soon;
  }

  /** Those that a tenant can use. */
  readyOf(tenant: string): R[] {
    return [...this.values()].filter(({ owner, state }) => owner === tenant && state === "ready");
  }

  isBeingRemoved(id: string): boolean {
    return this.#removals.has(id);
  }

  /**
   * Removes one permanently; it counts until that is done. @param erase safe to repeat.
   * @throws SandboxError unavailable when it failed for now.
   */
  discard(record: R, erase: (removing: R) => Promise<void>): Promise<void> {
    const { id } = record;
    const earlier = this.#removals.get(id);
    if (earlier !== undefined) return earlier;
    const removing = { ...record, state: "removing" };
    this.set(id, removing);
    const soon = this.#remove(id, async () => {
      await erase(removing);
      this.delete(id);
      this.#removals.delete(id);
    });
    this.#removals.set(id, soon);
    return soon;
  }
}
