import { BootError, messageOf } from "../../kernel/errors.js";
import type { Patience } from "../../kernel/time.js";
import type { Logger } from "../../observe/logger.js";
import type { Sandbox, SandboxBackend, SandboxId } from "../contract/backend.js";
import type { SandboxServices } from "../ledger/sandbox-services.js";
import { egressRulesOf } from "../contract/egress-rules.js";
import type { LedgerEntry } from "../ledger/ledger.js";
import type { EndReason } from "../model/describe-end.js";
import type { SandboxRecord } from "../model/live-sandbox.js";
import type { SandboxRegistry } from "./sandbox-registry.js";

export interface ReconcileOptions extends SandboxServices {
  readonly registry: SandboxRegistry;
  readonly patience: Patience;
}

/**
 * Brings the ledger and the backends into agreement after a start: adopts running sandboxes that both know, destroys
 * those that only the backend knows, ends those that only the ledger knows, and completes interrupted changes. Resolves
 * when all is done, or failed for now and goes on in the background.
 *
 * A sandbox whose backend is no longer enabled stays in the ledger.
 * @throws BootError when a backend cannot list its sandboxes.
 */
export async function reconcile(options: ReconcileOptions): Promise<void> {
  const entries = await options.ledger.entries();
  const backends = options.backends.all();
  const names = new Set(backends.map((backend) => backend.name));
  const stranded = entries.filter((entry) => !names.has(entry.record.backend));
  for (const { record } of stranded) {
    const fields = { sandbox: record.id, backend: record.backend };
    options.log.warn(fields, "sandbox belongs to a backend that is not enabled");
  }
  await Promise.all(
    backends.map((backend) =>
      reconcileBackend(
        backend,
        entries.filter((entry) => entry.record.backend === backend.name),
        options,
      ),
    ),
  );
}

async function reconcileBackend(
  backend: SandboxBackend,
  entries: readonly LedgerEntry[],
  options: ReconcileOptions,
): Promise<void> {
  const recovered = await recover(backend, options);
  const work: Promise<unknown>[] = [];
  for (const entry of entries) {
    const runtime = recovered.get(entry.record.id);
    recovered.delete(entry.record.id);
    work.push(runtime === undefined ? settleLost(entry, options) : settleFound(entry, runtime, options));
  }
  for (const runtime of recovered.values()) {
    options.log.warn({ sandbox: runtime.id, backend: backend.name }, "destroying an unknown sandbox");
    work.push(options.teardown.destroy(runtime).soon);
  }
  // Failures are logged where they happen, and tried again.
  await Promise.allSettled(work);
}

async function recover(
  backend: SandboxBackend,
  { backends, patience }: ReconcileOptions,
): Promise<Map<SandboxId, Sandbox>> {
  const what = `the stock-taking of backend '${backend.name}'`;
  try {
    const found = await patience(backends.ownerOf(backend.name), what, () => backend.recover());
    return new Map(found.map((sandbox) => [sandbox.id, sandbox]));
  } catch (error) {
    const message = `backend '${backend.name}' could not take stock of its sandboxes: ${messageOf(error)}`;
    throw new BootError([{ message }], { cause: error });
  }
}

async function settleFound(entry: LedgerEntry, runtime: Sandbox, options: ReconcileOptions): Promise<void> {
  const { registry, clock, log } = options;
  const { record, endReason } = entry;
  // A sandbox that pauses at its end is adopted first; its deadline has come, and the pause follows.
  const endsByPause = record.state === "running" && record.onTimeout === "pause";
  const isOver = !endsByPause && record.endsAtMs !== undefined && record.endsAtMs <= clock.now();
  if (record.state === "creating" || record.state === "killing") {
    await registry.finish(record, runtime, endReason);
  } else if (isOver) {
    await registry.finish(record, runtime, "timed out");
  } else if (!(await isConfined(record, runtime, log))) {
    await registry.finish(record, runtime, "backend lost");
  } else {
    await registry.adopt(entry, runtime);
    log.info({ sandbox: record.id }, "sandbox adopted");
  }
}

/** Applies the ledger's network rules, which may have been written just before the last server ended. */
async function isConfined(record: SandboxRecord, runtime: Sandbox, log: Logger): Promise<boolean> {
  if (runtime.networking === undefined && record.egress === undefined) return true;
  // Applied when it starts again.
  if (record.isStopped === true) return true;
  try {
    if (runtime.networking === undefined) throw new Error("its backend cannot restrict it any more");
    await runtime.networking.restrict(egressRulesOf(record));
    return true;
  } catch (error) {
    log.error(
      { sandbox: record.id, err: error },
      "a sandbox cannot be kept to its network rules and is ended",
    );
    return false;
  }
}

async function settleLost(entry: LedgerEntry, options: ReconcileOptions): Promise<void> {
  const { record, endReason } = entry;
  const reason: EndReason | undefined =
    record.state === "creating" || record.state === "killing" ? endReason : "backend lost";
  await options.registry.forget(record, reason);
}
