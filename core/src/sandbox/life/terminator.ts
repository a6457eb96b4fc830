import type { Sandbox, SandboxId } from "../contract/backend.js";
import type { ResourceShortage } from "../contract/process.js";
import type { HeldSandbox } from "../backends/held-sandbox.js";
import type { EndedSandbox } from "../ledger/ledger.js";
import { type EndReason, factsOfEnd } from "../model/describe-end.js";
import type { Reaper } from "./reaper.js";
import { digestOf } from "../../kernel/secrets.js";
import type { SandboxServices } from "../ledger/sandbox-services.js";
import type { VolumeRegistry } from "../volumes/volume-registry.js";

export interface TerminatorOptions extends SandboxServices {
  readonly volumes: Pick<VolumeRegistry, "released">;
  readonly reaper: Reaper;
  /** Called for each completely removed sandbox. */
  readonly onGone: (id: SandboxId) => void;
}

/** A program may be killed again and again. */
const TOLD_EVERY_MS = 60_000;

/** Ends sandboxes, each once, and records the ends of those that clients knew. */
export class Terminator {
  readonly #options: TerminatorOptions;

  constructor(options: TerminatorOptions) {
    this.#options = options;
  }

  /** Ends a sandbox once; every caller gets the same promise. */
  end(held: HeldSandbox, reason: EndReason): Promise<void> {
    if (held.ending !== undefined) return held.ending;
    const runtime = held.end(reason);
    this.#options.reaper.delete(held.record.id);
    held.ending = runtime === undefined ? held.undone.promise : this.tearDown(held, runtime);
    return held.ending;
  }

  /** Ends a sandbox as soon as its backend reports that it ended by itself, and tells what it lacks before. */
  watch(held: HeldSandbox, { lost, shortages }: Sandbox): void {
    shortages?.watch((shortage) => this.#exhausted(held, shortage));
    void lost?.then((reason) => {
      if (held.isEnding) return;
      const { id, backend } = held.record;
      const { lacked } = factsOfEnd(reason);
      // A backend that tells shortages has told those of memory.
      if (lacked !== undefined && (lacked === "disk" || shortages === undefined))
        this.#options.metrics.lacked(held.record, lacked);
      this.#options.log.warn({ sandbox: id, backend, reason }, "a sandbox has ended by itself");
      // A failure is already logged and counted, and tried again.
      this.end(held, reason).catch(() => {});
    });
  }

  #exhausted(held: HeldSandbox, { resource, limit }: ResourceShortage): void {
    const { clock, events, ledger, log, metrics } = this.#options;
    if (held.isEnding) return;
    metrics.lacked(held.record, resource);
    const { id } = held.record;
    const toldAtMs = held.toldShortages.get(resource) ?? -Infinity;
    if (clock.now() - toldAtMs < TOLD_EVERY_MS) return;
    held.toldShortages.set(resource, clock.now());
    log.warn(
      { sandbox: id, resource, limit },
      "a sandbox reached a limit: a process was killed or not started",
    );
    const event = events.of("exhausted", held.record, { reason: `${resource}: limit ${limit}` });
    if (event === undefined) return;
    ledger.tell(event).then(
      () => events.wake(),
      (error: unknown) => log.error({ sandbox: id, err: error }, "an event could not be written"),
    );
  }

  /** Destroys a sandbox that no longer serves. Rejects when that failed for now; retries go on all the same. */
  async tearDown(held: HeldSandbox, runtime: Sandbox): Promise<void> {
    const { ledger, shared, teardown, log, metrics } = this.#options;
    const { record, endReason } = held;
    // What it used since the last sample, while there is somebody to ask. That of a warm one is no tenant's.
    held.use.note(runtime);
    if (held.hasServed) metrics.countUse(held);
    // Others need not wait for the backend; `recordEnd` waits for this.
    void shared.used?.remove(record.id);
    try {
      await ledger.write(record, { endReason: held.hasServed ? endReason : undefined });
    } catch (error) {
      // Freeing resources matters more than an accurate ledger; the next start finds the sandbox gone.
      log.error({ sandbox: record.id, err: error }, "writing the end of a sandbox failed");
    }
    const { soon, final } = teardown.destroy(runtime);
    const recorded = final.then((isGone) => (isGone ? this.recordEnd(held) : undefined));
    try {
      await soon;
    } catch (error) {
      held.isLingering = true;
      throw error;
    }
    await recorded;
  }

  /** Removes the entry of a completely removed sandbox. Never rejects. */
  async recordEnd(held: HeldSandbox): Promise<void> {
    const { ledger, shared, volumes, log, metrics, events, onGone } = this.#options;
    const { id, mounts } = held.record;
    await shared.used?.remove(id);
    const ended = this.endedAs(held);
    try {
      if (held.hasServed) {
        // Another server has told of a loss.
        const isTold = ended.reason === "server lost";
        const event = isTold ? undefined : events.of("killed", held.record, { reason: ended.reason });
        await ledger.end(ended, event);
        events.wake();
      } else {
        await ledger.remove(id);
      }
    } catch (error) {
      log.error({ sandbox: id, err: error }, "writing the end of a sandbox failed");
    }
    onGone(id);
    await volumes.released(mounts.map(({ volume }) => volume));
    if (!held.hasServed) return;
    metrics.ended.inc({ reason: ended.reason });
    log.info({ sandbox: id, reason: ended.reason }, "sandbox ended");
  }

  endedAs({ record, endReason }: HeldSandbox): EndedSandbox {
    const { id, owner, backend, template, startedAtMs, accessToken } = record;
    return {
      id,
      owner,
      backend,
      template,
      reason: endReason ?? "killed",
      startedAtMs,
      endedAtMs: this.#options.clock.now(),
      accessTokenDigest: accessToken === undefined ? undefined : digestOf(accessToken),
    };
  }
}
