import { messageOf, SandboxError } from "../../kernel/errors.js";
import { traced } from "../../observe/tracing.js";
import { runAs } from "../../kernel/owner.js";
import type { Sandbox, SandboxBackend } from "../contract/backend.js";
import type { Terminator } from "./terminator.js";
import type { HeldSandbox } from "../backends/held-sandbox.js";
import { limitCreation, type SandboxServices } from "../ledger/sandbox-services.js";
import type { Reservation } from "../model/shared.js";
import { type LiveSandbox, type SandboxRecord, reasonAgainstPause, specOf } from "../model/live-sandbox.js";
import type { ReadinessProbe } from "../model/readiness-probe.js";
import type { Reaper } from "./reaper.js";
import { requireNetworking } from "../contract/egress-rules.js";
import { Semaphore } from "../../bounds/semaphore.js";
import { NotReady, untilReady } from "./until-ready.js";
import type { AddedStartups } from "./startups.js";
import type { AddedWarmUps } from "../warm/warm-ups.js";
import type { WarmPools } from "../warm/warm-pool.js";

export interface CreationQueueOptions extends SandboxServices {
  readonly terminator: Terminator;
  readonly reaper: Reaper;
  readonly warmUps: AddedWarmUps;
  readonly pools: WarmPools;
  readonly startups: AddedStartups;
  readonly admissionOf: (record: SandboxRecord) => Reservation["admit"];
  /** Called for each sandbox as soon as it runs. */
  readonly onMade: (sandbox: LiveSandbox) => void;
}

export interface CreationConditions {
  /** The sandbox's life, counted from its creation; undefined = until killed. */
  readonly timeoutMs: number | undefined;
  /** Probe that has to succeed before the creation is answered. */
  readonly probe: ReadinessProbe | undefined;
  /** Aborted when the creator no longer waits. */
  readonly signal: AbortSignal | undefined;
}

/** Creates sandboxes held as `creating`: completely, or undone so that nothing is left. */
export class CreationQueue {
  readonly #options: CreationQueueOptions;
  readonly #turns: Semaphore;
  /** True once the server is stopping. */
  isClosed = false;

  constructor(options: CreationQueueOptions) {
    this.#options = options;
    const { createConcurrency, createQueue: queueLimit } = options.settings;
    this.#turns = new Semaphore(createConcurrency, { queueLimit, tenants: options.tenants });
  }

  /** Creates one, after its turn at the backend. Undoes everything before it rejects. */
  async make(held: HeldSandbox, backend: SandboxBackend, making: CreationConditions): Promise<LiveSandbox> {
    const provide = async (): Promise<Sandbox> => {
      await this.#reserve(held);
      const runtime = await this.#provisionInTurn(held, backend);
      await this.#start(held, runtime);
      return runtime;
    };
    const make = () => this.#make(held, provide, making);
    return this.#whileWanted(held, making.signal, this.#traced(held, "cold", make));
  }

  /** Gives a warm sandbox to its creator; undefined when it does not work, and nothing of it is left then. */
  async handOut(warm: HeldSandbox, making: CreationConditions): Promise<LiveSandbox | undefined> {
    const { pools, warmUps, metrics, log } = this.#options;
    const { id, template } = warm.record;
    const { runtime } = warm;
    const provide = async (): Promise<Sandbox> => {
      await this.#reserve(warm);
      await traced("hand out", () => warmUps.run("handOut", warm, warm.making.signal));
      return runtime;
    };
    const make = () => this.#make(warm, provide, making);
    try {
      const made = await this.#whileWanted(warm, making.signal, this.#traced(warm, "warm", make));
      pools.handedOut(template, "hit");
      return made;
    } catch (error) {
      pools.handedOut(template, "broken");
      const cannotPause =
        warm.record.onTimeout === "pause" && reasonAgainstPause(warm.record, runtime) !== undefined;
      // A second one would take as long as the first.
      if (making.signal?.aborted || this.isClosed || cannotPause || error instanceof NotReady) {
        metrics.createFailures.inc();
        throw error;
      }
      log.warn({ sandbox: id, template, err: error }, "a warm sandbox did not work; a new one is made");
      return undefined;
    }
  }

  /** Creates a sandbox for a warm pool. Undoes everything before it rejects. */
  async warm(
    held: HeldSandbox,
    backend: SandboxBackend,
    { probe, signal }: Pick<CreationConditions, "probe"> & { readonly signal: AbortSignal },
  ): Promise<HeldSandbox> {
    const { ledger, terminator, log } = this.#options;
    const giveUp = (): void =>
      held.making.abort(new SandboxError("server_stopped", "the server is stopping"));
    signal.addEventListener("abort", giveUp, { once: true });
    let runtime: Sandbox | undefined;
    try {
      // As `creating`: if this server crashes, the next one destroys it.
      await ledger.write(held.record);
      held.making.signal.throwIfAborted();
      runtime = await this.#provision(held, backend);
      held.making.signal.throwIfAborted();
      held.warm({ ...held.record, state: "running" }, runtime);
      {
        using _limit = limitCreation(held.making, this.#options, "the sandbox was not warm");
        await this.#options.startups.run(held, held.making.signal);
        await this.#options.warmUps.run("prepare", held, held.making.signal);
      }
      held.making.signal.throwIfAborted();
      if (probe !== undefined) await this.#awaitReadiness(held, runtime, probe);
      held.making.signal.throwIfAborted();
      log.debug({ sandbox: held.record.id, template: held.record.template }, "sandbox is warm");
      return held;
    } catch (error) {
      if (runtime === undefined) {
        held.end("killed");
        await terminator.recordEnd(held);
      } else await terminator.end(held, "killed");
      throw error;
    } finally {
      signal.removeEventListener("abort", giveUp);
    }
  }

  /** A creation that a trace shows. */
  #traced<T>({ record }: HeldSandbox, how: "cold" | "warm", make: () => Promise<T>): Promise<T> {
    const { id, template, backend } = record;
    const attributes = {
      "coppice.sandbox": id,
      "coppice.template": template,
      "coppice.backend": backend,
      "coppice.how": how,
    };
    return traced("sandbox.create", make, { attributes });
  }

  async #make(
    held: HeldSandbox,
    provide: () => Promise<Sandbox>,
    { timeoutMs, probe }: CreationConditions,
  ): Promise<LiveSandbox> {
    const { ledger, terminator, reaper, clock, metrics, events, log, onMade } = this.#options;
    const { signal } = held.making;
    const askedAtMs = held.record.startedAtMs;
    const beganMs = performance.now();
    let runtime: Sandbox | undefined;
    try {
      runtime = await provide();
      const provideMs = sinceMs(beganMs);
      const reason = held.record.onTimeout === "pause" && reasonAgainstPause(held.record, runtime);
      if (reason) throw new SandboxError("pausing_unsupported", reason);
      if (held.record.egress !== undefined) requireNetworking(runtime, held.record.backend);
      if (probe !== undefined) await this.#awaitReadiness(held, runtime, probe);
      const startedAtMs = clock.now();
      const endsAtMs = timeoutMs === undefined ? undefined : startedAtMs + timeoutMs;
      const record: SandboxRecord = { ...held.record, state: "running", startedAtMs, endsAtMs };
      signal.throwIfAborted();
      const event = events.of("created", record);
      const writingMs = performance.now();
      await traced("write", () => ledger.write(record, { awaited: event }));
      const writeMs = sinceMs(writingMs);
      // Aborted during the last write: no client will know this sandbox, so it must not stay.
      signal.throwIfAborted();
      held.run(record, runtime);
      // Before later events of the sandbox.
      const told = events.confirm(event);
      reaper.set(record.id, endsAtMs);
      metrics.created.inc();
      metrics.createSeconds.observe((startedAtMs - askedAtMs) / 1000);
      const { id, owner: tenant, template, backend } = record;
      log.info({ sandbox: id, tenant, template, backend, provideMs, writeMs }, "sandbox created");
      onMade(held);
      await traced("tell", () => told);
      return held;
    } catch (error) {
      // After an abort its reason explains more than the backend's error.
      const cause: unknown = signal.aborted ? signal.reason : error;
      const warm = held.end("killed");
      if (warm === undefined) {
        metrics.createFailures.inc();
        const undone =
          runtime === undefined ? terminator.recordEnd(held) : terminator.tearDown(held, runtime);
        await undone.then(held.undone.resolve, held.undone.reject);
      } else {
        held.ending ??= terminator.tearDown(held, warm);
        await held.ending.catch(() => {});
      }
      throw cause;
    }
  }

  /** Records it for all servers, before it takes anything here. */
  async #reserve({ record, making }: HeldSandbox): Promise<void> {
    const { shared, admissionOf } = this.#options;
    const { used } = shared;
    if (used !== undefined)
      await traced("reserve", () => used.add(record, { admit: admissionOf(record), signal: making.signal }));
    making.signal.throwIfAborted();
  }

  /** @throws as the startups; the sandbox is to be destroyed then. */
  async #start(held: HeldSandbox, runtime: Sandbox): Promise<void> {
    const { startups, metrics } = this.#options;
    if (!startups.concern(held.record)) return;
    held.warm({ ...held.record, state: "running" }, runtime);
    try {
      await traced("start", () => startups.run(held, held.making.signal));
    } catch (error) {
      metrics.createFailures.inc();
      throw error;
    }
  }

  async #awaitReadiness(held: HeldSandbox, runtime: Sandbox, probe: ReadinessProbe): Promise<void> {
    const { settings, clock, metrics } = this.#options;
    const { signal } = held.making;
    const beganAtMs = clock.now();
    try {
      const options = { settings: settings.readiness, clock, signal };
      await traced("probe", () => untilReady({ record: held.record, runtime }, probe, options));
      metrics.readySeconds.observe({ probe: probe.type }, (clock.now() - beganAtMs) / 1000);
    } catch (error) {
      if (!signal.aborted) metrics.notReady.inc({ probe: probe.type });
      throw error;
    }
  }

  #provisionInTurn(held: HeldSandbox, backend: SandboxBackend): Promise<Sandbox> {
    const { signal } = held.making;
    const turn = Promise.withResolvers<void>();
    void traced("wait", () => turn.promise);
    const provisioned = this.#turns.run(
      async () => {
        turn.resolve();
        await traced("write", () => this.#options.ledger.write(held.record));
        signal.throwIfAborted();
        return traced("provision", () => this.#provision(held, backend));
      },
      signal,
      held.record.owner,
    );
    // Also of one that gets none.
    return provisioned.finally(turn.resolve);
  }

  async #provision(held: HeldSandbox, backend: SandboxBackend): Promise<Sandbox> {
    const { terminator, teardown, backends } = this.#options;
    const late = `backend '${backend.name}' did not make the sandbox`;
    using _limit = limitCreation(held.making, this.#options, late);
    const made = await runAs(backends.ownerOf(backend.name), () =>
      backend.provision(specOf(held.record), held.making.signal),
    );
    if (made.id !== held.record.id) {
      // It could never be found by the id that the server uses.
      await teardown.destroy(made).soon;
      const text = `backend '${backend.name}' made sandbox '${made.id}' for '${held.record.id}'`;
      throw new SandboxError("internal_error", text);
    }
    terminator.watch(held, made);
    return made;
  }

  /**
   * Waits for a creation as long as its creator does, then for its undoing. A backend that ignores the abort is left
   * behind: a sandbox that it makes later is destroyed.
   */
  async #whileWanted(
    held: HeldSandbox,
    signal: AbortSignal | undefined,
    made: Promise<LiveSandbox>,
  ): Promise<LiveSandbox> {
    const { clock, settings } = this.#options;
    const abandoned = Promise.withResolvers<never>();
    let takeBack: (() => void) | undefined;
    const abandonLater = (): void => {
      takeBack = clock.after(settings.destroyTimeout, () => {
        held.isLingering = true;
        const text = `sandbox "${held.record.id}" is still being undone: ${messageOf(held.making.signal.reason)}`;
        const error = new SandboxError("destruction_pending", text);
        held.undone.reject(error);
        abandoned.reject(error);
      });
    };
    const giveUp = (): void => {
      held.making.abort(new SandboxError("client_gone", "the request for the sandbox was canceled"));
    };
    held.making.signal.addEventListener("abort", abandonLater);
    signal?.addEventListener("abort", giveUp);
    if (signal?.aborted) giveUp();
    try {
      return await Promise.race([made, abandoned.promise]);
    } finally {
      held.making.signal.removeEventListener("abort", abandonLater);
      signal?.removeEventListener("abort", giveUp);
      takeBack?.();
    }
  }
}

/** To the hundredth of a millisecond. */
function sinceMs(startMs: number): number {
  return Number((performance.now() - startMs).toFixed(2));
}
