import { messageOf, SandboxError } from "../../kernel/errors.js";
import type { HeldSandbox } from "../backends/held-sandbox.js";
import { limitCreation, type SandboxServices } from "../ledger/sandbox-services.js";
import type { AddedStartups } from "./startups.js";
import type { Reaper } from "./reaper.js";
import type { SandboxEvent } from "../model/sandbox-event.js";
import type { PauseTrigger, ResumeTrigger } from "../model/sandbox-metrics.js";
import { type SandboxRecord, reasonAgainstPause, specOf } from "../model/live-sandbox.js";
import { untilReady } from "./until-ready.js";

export interface PausesOptions extends SandboxServices {
  readonly reaper: Reaper;
  readonly startups: AddedStartups;
  /** Called with the successor of a sandbox. */
  readonly onSucceeded: (successor: HeldSandbox) => void;
}

interface Resumption {
  /** The sandbox's remaining life, counted from its resume; undefined = until killed. */
  readonly timeoutMs: number | undefined;
  readonly trigger: ResumeTrigger;
  /** False: the sandbox keeps its files but not its processes, and starts anew. */
  readonly keepsMemory?: boolean | undefined;
}

// Time between attempts of a time-out's pause that fails.
const RETRY_MS = 10_000;
/** Shortest lifetime of a sandbox that a request has resumed, as E2B has it. */
const RESUMED_AT_LEAST_MS = 5 * 60_000;

/** Pauses and resumes sandboxes. A sandbox has one change at a time; its end overrides all. */
export class Pauses {
  readonly #options: PausesOptions;

  constructor(options: PausesOptions) {
    this.#options = options;
  }

  async pause(wanted: HeldSandbox, trigger: PauseTrigger, keepsMemory = true): Promise<void> {
    let held = wanted.current;
    for (; held.change !== undefined; held = held.current) {
      const { kind, done } = held.change;
      if (kind === "pausing") {
        await done;
        return;
      }
      // A failure is reported to its own caller.
      await done.catch(() => {});
    }
    const { id, state, backend } = held.record;
    if (state === "paused") throw conflict(`Error pausing sandbox - sandbox '${id}' is already paused`);
    if (state !== "running") throw conflict(`Sandbox '${id}' cannot be paused while in '${state}' state`);
    const reason = reasonAgainstPause({ backend, keepsMemory }, held.runtime);
    if (reason !== undefined) throw new SandboxError("pausing_unsupported", reason);
    await held.during("pausing", () => this.#freeze(held, trigger, keepsMemory));
  }

  async resume(wanted: HeldSandbox, resumption: Resumption): Promise<boolean> {
    let held = wanted.current;
    for (; held.change !== undefined; held = held.current) {
      const { kind, done } = held.change;
      if (kind === "resuming") {
        await done;
        return true;
      }
      if (held.record.state === "running") return false;
      // A failure is reported to its own caller.
      await done.catch(() => {});
    }
    const { id, state } = held.record;
    if (state === "running") return false;
    if (state !== "paused") throw conflict(`Sandbox '${id}' cannot be resumed while in '${state}' state`);
    await held.during("resuming", async () => {
      if (held.record.isStopped === true) await this.#startAnew(held, resumption);
      else if (resumption.keepsMemory !== false) await this.#thaw(held, resumption);
      else await this.#reboot(held, resumption);
    });
    return true;
  }

  async use(held: HeldSandbox): Promise<() => void> {
    if (held.change !== undefined || held.record.state !== "running") await this.#wake(held);
    const { clock } = this.#options;
    held.requests += 1;
    held.lastUsedAtMs = clock.now();
    let isDone = false;
    return () => {
      if (isDone) return;
      isDone = true;
      held.requests -= 1;
      held.lastUsedAtMs = clock.now();
    };
  }

  /**
   * Pauses a sandbox at its time-out, unless it has been used: then its time starts again. A failed pause is retried
   * later; until then the sandbox runs on.
   */
  async expire(held: HeldSandbox): Promise<void> {
    const { clock, ledger, reaper, log } = this.#options;
    const { id, autoResume, timeoutMs } = held.record;
    if (autoResume && timeoutMs !== undefined) {
      const usedAtMs = held.requests > 0 ? clock.now() : held.lastUsedAtMs;
      const endsAtMs = usedAtMs + timeoutMs;
      if (endsAtMs > clock.now()) {
        held.update({ endsAtMs });
        reaper.set(id, endsAtMs);
        await ledger.write(held.record);
        return;
      }
    }
    try {
      await this.pause(held, "timeout", held.record.keepsMemory);
    } catch (error) {
      if (held.isEnding || held.record.state !== "running") return;
      log.error({ sandbox: id, err: error }, "pausing a sandbox failed; it runs on and is tried again");
      reaper.set(id, clock.now() + RETRY_MS);
    }
  }

  /**
   * Brings an adopted sandbox into the state of its record. One that cannot be paused again runs.
   * @param awaited its awaited events.
   */
  async restore(held: HeldSandbox, awaited: readonly SandboxEvent[]): Promise<void> {
    const { clock, ledger, events, log } = this.#options;
    const { id, state, timeoutMs } = held.record;
    const pause = awaited.find(({ type }) => type === "paused");
    if (held.record.isStopped === true) {
      await this.#stop(held);
      for (const event of awaited) await events.confirm(event);
      return;
    }
    try {
      if (state !== "paused") await held.handle.pausing?.resume();
      else if (held.handle.pausing === undefined) throw new Error("its backend cannot pause");
      else await held.handle.pausing.pause();
    } catch (error) {
      if (state !== "paused") throw error;
      log.error({ sandbox: id, err: error }, "a paused sandbox could not be paused again and runs");
      const endsAtMs = timeoutMs === undefined ? undefined : clock.now() + timeoutMs;
      held.update({ state: "running", endsAtMs });
      const happened = pause === undefined ? events.of("resumed", held.record) : undefined;
      await ledger.write(held.record, { happened, withdrawn: pause?.id });
    }
    // A withdrawn event is no longer awaited.
    for (const event of awaited) await events.confirm(event);
  }

  async #wake(held: HeldSandbox): Promise<void> {
    const { timeoutMs, state } = held.record;
    if (state === "running" || held.wakesByTraffic) {
      const lifeMs = timeoutMs === undefined ? undefined : Math.max(timeoutMs, RESUMED_AT_LEAST_MS);
      await this.resume(held, { timeoutMs: lifeMs, trigger: "traffic" });
    } else await held.change?.done;
    if (held.record.state === "running") return;
    throw transitioning();
  }

  async #freeze(held: HeldSandbox, trigger: PauseTrigger, keepsMemory: boolean): Promise<void> {
    const { settings, ledger, reaper, metrics, events, clock, log } = this.#options;
    const { id, endsAtMs } = held.record;
    const { pausing } = held.runtime;
    const event = events.of("paused", held.record, { reason: trigger });
    // From here on no request reaches it. A later server pauses a sandbox that a crash leaves half frozen.
    const isStopped = !keepsMemory || undefined;
    held.update({
      state: "paused",
      ...(isStopped && { isStopped }),
      endsAtMs: clock.now() + settings.pausedKept,
    });
    reaper.set(id, held.record.endsAtMs);
    try {
      await ledger.write(held.record, { awaited: event });
      if (!isStopped) await pausing?.pause();
    } catch (error) {
      metrics.pauseFailures.inc();
      held.throwIfEnding();
      const resumed = isStopped ? undefined : pausing?.resume();
      await resumed?.catch((failure: unknown) => {
        log.error({ sandbox: id, err: failure }, "a sandbox that could not be paused could not be resumed");
      });
      held.update({ state: "running", isStopped: undefined, endsAtMs });
      if (!held.isEnding) {
        reaper.set(id, endsAtMs);
        await ledger.write(held.record, { withdrawn: event?.id });
      }
      throw new SandboxError("pause_failed", `sandbox "${id}" could not be paused`, { cause: error });
    }
    held.throwIfEnding();
    const paused = isStopped ? held.succeed(this.#options.onSucceeded) : held;
    if (isStopped) await paused.during("pausing", () => this.#stop(paused));
    paused.throwIfEnding();
    await events.confirm(event);
    metrics.pauses.inc({ trigger });
    log.info({ sandbox: id, trigger, keepsMemory }, "sandbox paused");
  }

  /** Ends the processes of a paused sandbox. A failed stop is completed before it starts again. */
  async #stop(held: HeldSandbox): Promise<void> {
    const { metrics, log } = this.#options;
    const { id } = held.record;
    try {
      if (held.handle.stopping === undefined) throw new Error("its backend cannot");
      held.use.note(held.handle);
      await held.handle.stopping.stop();
    } catch (error) {
      if (held.isEnding) return;
      metrics.pauseFailures.inc();
      log.error({ sandbox: id, err: error }, "not all of a paused sandbox could be stopped");
    }
  }

  /** Starts a sandbox that was paused with its processes from the beginning. */
  async #reboot(held: HeldSandbox, resumption: Resumption): Promise<void> {
    const { backend } = held.record;
    const reason = reasonAgainstPause({ backend, keepsMemory: false }, held.handle);
    if (reason !== undefined) throw new SandboxError("pausing_unsupported", reason);
    const stopped = { ...held.record, isStopped: true };
    await this.#options.ledger.write(stopped);
    held.throwIfEnding();
    held.update(stopped);
    const successor = held.succeed(this.#options.onSucceeded);
    await successor.during("resuming", () => this.#startAnew(successor, resumption));
  }

  /** The ledger says `running` once it runs: if the server ends before, the sandbox is stopped. */
  async #startAnew(held: HeldSandbox, { timeoutMs, trigger }: Resumption): Promise<void> {
    const { settings, ledger, events, clock } = this.#options;
    const { stopping } = held.handle;
    const paused = held.record;
    const { id, template } = paused;
    const deadline = new AbortController();
    const signal = AbortSignal.any([held.ended, deadline.signal]);
    try {
      {
        using _limit = limitCreation(deadline, this.#options, "the sandbox did not begin anew");
        // Processes may still exist if memory was kept, or if the stop failed.
        held.use.note(held.handle);
        await stopping?.stop();
        await stopping?.start(specOf(held.record), signal);
      }
      const begun = { state: "running", isStopped: undefined, isResizing: undefined } as const;
      // In memory alone: startups use a running sandbox, and requests wait for this change.
      held.update(begun);
      await this.#options.startups.run(held, signal);
      const probe = settings.templates[template]?.readinessProbe;
      const probed = { record: held.record, runtime: held.handle };
      if (probe !== undefined)
        await untilReady(probed, probe, { settings: settings.readiness, clock, signal });
      signal.throwIfAborted();
      const endsAtMs = timeoutMs === undefined ? undefined : clock.now() + timeoutMs;
      const running: SandboxRecord = { ...held.record, endsAtMs };
      const happened = events.of("resumed", held.record, { reason: trigger });
      await ledger.write(running, { happened });
      held.throwIfEnding();
      held.update({ endsAtMs });
    } catch (error) {
      held.throwIfEnding();
      held.update(paused);
      await this.#stop(held);
      const text = `sandbox "${id}" could not be resumed: ${messageOf(error)}`;
      throw new SandboxError("resume_failed", text, { cause: error });
    }
    events.wake();
    this.#noteResumed(held, { trigger, keepsMemory: false });
  }

  async #thaw(held: HeldSandbox, { timeoutMs, trigger }: Resumption): Promise<void> {
    const { ledger, events, clock } = this.#options;
    const paused = held.record;
    const event = events.of("resumed", paused, { reason: trigger });
    const endsAtMs = timeoutMs === undefined ? undefined : clock.now() + timeoutMs;
    try {
      await ledger.write({ ...paused, state: "running", endsAtMs }, { awaited: event });
      await held.handle.pausing?.resume();
    } catch (error) {
      held.throwIfEnding();
      await ledger.write(paused, { withdrawn: event?.id });
      const text = `sandbox "${paused.id}" could not be resumed`;
      throw new SandboxError("resume_failed", text, { cause: error });
    }
    held.throwIfEnding();
    held.update({ state: "running", endsAtMs });
    this.#noteResumed(held, { trigger });
    await events.confirm(event);
  }

  #noteResumed(held: HeldSandbox, fields: Pick<Resumption, "trigger" | "keepsMemory">): void {
    const { reaper, metrics, clock, log } = this.#options;
    const { id, endsAtMs } = held.record;
    held.lastUsedAtMs = clock.now();
    reaper.set(id, endsAtMs);
    metrics.resumptions.inc({ trigger: fields.trigger });
    log.info({ sandbox: id, ...fields }, "sandbox resumed");
  }
}

/** Refuses changes of a sandbox that is being paused or resumed. */
export function transitioning(): SandboxError {
  const text = "The sandbox is still transitioning. Try again in a moment.";
  return new SandboxError("sandbox_transitioning", text);
}

function conflict(message: string): SandboxError {
  return new SandboxError("sandbox_state_conflict", message);
}
