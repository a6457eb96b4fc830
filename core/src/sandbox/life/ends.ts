import type { Sandbox, SandboxId } from "../contract/backend.js";
import type { HeldSandbox } from "../backends/held-sandbox.js";
import type { EndedSandbox } from "../ledger/ledger.js";
import type { EndReason } from "../model/live-sandbox.js";
import type { Reaper } from "./reaper.js";
import { digestOf } from "../backends/sandbox-secrets.js";
import type { SandboxServices } from "../ledger/sandbox-services.js";
import type { VolumeRegistry } from "../volumes/volume-registry.js";

export interface EndsOptions extends SandboxServices {
  readonly volumes: Pick<VolumeRegistry, "released">;
  readonly reaper: Reaper;
  /** Called for each completely removed sandbox. */
  readonly onGone: (id: SandboxId) => void;
}

/** Ends sandboxes, each once, and records the ends of those that clients knew. */
export class Ends {
  readonly #options: EndsOptions;

  constructor(options: EndsOptions) {
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

  /** Ends a sandbox as soon as its backend reports that it ended by itself. */
  watch(held: HeldSandbox, { lost }: Sandbox): void {
    void lost?.then((reason) => {
      if (held.isEnding) return;
      const { id, backend } = held.record;
      this.#options.log.warn({ sandbox: id, backend, reason }, "a sandbox has ended by itself");
      // A failure is already logged and counted, and tried again.
      this.end(held, reason).catch(() => {});
    });
  }

  /** Destroys a sandbox that no longer serves. Rejects when that failed for now; retries go on all the same. */
  async tearDown(held: HeldSandbox, runtime: Sandbox): Promise<void> {
    const { ledger, shared, teardown, log } = this.#options;
    const { record, endReason } = held;
    // Others need not wait for the backend; `recordEnd` waits for this.
    void shared.remove(record.id);
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
    await shared.remove(id);
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
