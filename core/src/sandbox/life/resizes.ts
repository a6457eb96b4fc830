import { SandboxError } from "../../kernel/errors.js";
import type { Limits, Sandbox } from "../contract/backend.js";
import type { HeldSandbox } from "../backends/held-sandbox.js";
import type { SandboxServices } from "../ledger/sandbox-services.js";
import type { Reservation } from "../model/shared.js";
import type { SandboxRecord } from "../model/live-sandbox.js";
import { changedLimits, checkRequestedLimits, type LimitsChange } from "../model/limits.js";
import type { SandboxEvent } from "../model/sandbox-event.js";
import { UnknownSandbox } from "../contract/sandbox-id.js";

export interface ResizesOptions extends SandboxServices {
  /** Called before limits are raised. @throws SandboxError */
  readonly admit: (wanted: SandboxRecord) => void;
  readonly admissionOf: (record: SandboxRecord) => Reservation["admit"];
}

export class Resizes {
  readonly #options: ResizesOptions;

  constructor(options: ResizesOptions) {
    this.#options = options;
  }

  resize(held: HeldSandbox, change: LimitsChange): Promise<void> {
    return held.turns.run(() => this.#resize(held, change));
  }

  /** Applies the limits of an adopted sandbox's record, if the last server was about to. */
  async restore(record: SandboxRecord, { resizing }: Sandbox): Promise<SandboxRecord> {
    if (record.isResizing !== true) return record;
    const { ledger, events, log } = this.#options;
    try {
      await resizing?.resize(record.limits);
    } catch (error) {
      log.error(
        { sandbox: record.id, err: error },
        "a sandbox could not be given the limits that it was to have",
      );
      return record;
    }
    const restored: SandboxRecord = { ...record, isResizing: undefined };
    await ledger.write(restored, { happened: events.of("updated", restored, { limits: restored.limits }) });
    return restored;
  }

  async #resize(held: HeldSandbox, change: LimitsChange): Promise<void> {
    const { settings, ledger, shared, events, admit, admissionOf } = this.#options;
    const { record } = held;
    const { id, state, backend, limits: before } = record;
    if (held.isEnding) throw new UnknownSandbox(id);
    if (state !== "running")
      throw new SandboxError("sandbox_state_conflict", `sandbox "${id}" is not running`);
    // It may have outlived its template.
    const templateLimits = settings.templates[record.template]?.limits ?? record.build?.limits ?? {};
    const usual = { ...this.#options.backends.get(backend).defaultLimits, ...templateLimits };
    checkRequestedLimits(change, { settings, template: record.template, templateLimits: usual });
    const { resizing } = held.runtime;
    if (resizing === undefined) {
      throw new SandboxError(
        "resizing_unsupported",
        `backend '${backend}' on this host does not support resizing`,
      );
    }
    const limits = changedLimits(before, change, templateLimits);
    const isRaised = isMore(limits, before);
    if (isRaised) admit({ ...record, limits });
    // No await since the admission: the next request is weighed against these limits.
    held.update({ limits, isResizing: true });
    let happened: SandboxEvent | undefined;
    try {
      if (isRaised)
        await shared.used?.raise(held.record, { admit: admissionOf(held.record), signal: held.ended });
      // Before the backend acts: the next server completes an interrupted change.
      await ledger.write(held.record);
      await resizing.resize(limits);
      held.update({ isResizing: undefined });
      if (!isRaised) await shared.used?.lower(held.record);
      happened = events.of("updated", held.record, { limits });
    } catch (error) {
      held.update({ limits: before, isResizing: undefined });
      if (isRaised) await shared.used?.lower(held.record);
      throw error;
    } finally {
      // A written end of the sandbox must not be overwritten.
      if (!held.isEnding) await ledger.write(held.record, { happened });
      events.wake();
    }
    if (held.isEnding) throw new UnknownSandbox(id);
  }
}

function isMore(limits: Limits, before: Limits): boolean {
  const orNone = (limit: number | undefined): number => limit ?? Number.POSITIVE_INFINITY;
  return (["cpuCount", "memoryMiB", "diskMiB"] as const).some(
    (name) => orNone(limits[name]) > orNone(before[name]),
  );
}
