import { SandboxError } from "../../kernel/errors.js";
import type { SandboxId, SnapshotId } from "../contract/backend.js";
import type { HeldSandbox } from "../backends/held-sandbox.js";
import type { CountedStorage } from "../model/admissions.js";
import type { SandboxServices } from "../ledger/sandbox-services.js";
import { checkReadinessProbe } from "../model/readiness-probe.js";
import { createdLike } from "../life/sandboxes.js";
import { Reaper } from "../life/reaper.js";
import { newId } from "../../kernel/secrets.js";
import type { SandboxRegistry } from "../life/sandbox-registry.js";
import type { Forked, ForkRequest, SnapshotRecord, Snapshots, TenantSnapshots } from "../model/snapshots.js";
import { parseTemplateReference } from "../templates/template-reference.js";
import type { Templates } from "../templates/templates.js";
import { RemovableRecords } from "../backends/teardown.js";
import { UnknownSandbox } from "../contract/sandbox-id.js";

export interface SnapshotRegistryOptions extends SandboxServices {
  readonly sandboxes: Pick<SandboxRegistry, "create" | "get">;
  readonly templates: Templates;
  /** @throws SandboxError resource_exhausted by a quota */
  readonly admitStorage: (tenant: string, wanted: CountedStorage) => void;
}

/** The snapshots of this server, written to the ledger before a backend acts. */
export class SnapshotRegistry implements Snapshots {
  readonly #options: SnapshotRegistryOptions;
  readonly #records: RemovableRecords<SnapshotRecord>;
  readonly #reaper: Reaper;

  constructor(options: SnapshotRegistryOptions) {
    this.#options = options;
    this.#records = new RemovableRecords(options.teardown, "snapshot");
    this.#reaper = new Reaper(options.clock, (id) => {
      const record = this.#records.get(id);
      // A failure is logged and tried again.
      if (record !== undefined) this.#discard(record).catch(() => {});
    });
  }

  of(tenant: string): TenantSnapshots {
    const held = (id: SandboxId): HeldSandbox => {
      const found = this.#options.sandboxes.get(id);
      if (found.record.owner !== tenant) throw new UnknownSandbox(id);
      return found;
    };
    return {
      take: async (id, name) =>
        this.#take(held(id), {
          name: name === undefined ? name : this.#checkName(name, tenant),
          isTemporary: false,
        }),
      fork: async (id, wanted, signal) => this.#fork(held(id), wanted, signal),
      lend: async (id, use) => this.#lend(held(id), use),
      list: () => this.#ready(tenant).filter(({ isTemporary }) => !isTemporary),
      find: (reference) => this.#find(tenant, reference),
      remove: (id) => this.#remove(tenant, id),
    };
  }

  /** A tenant's snapshots for quotas, also those that are not completely removed. */
  counted(tenant: string): readonly CountedStorage[] {
    return [...this.#records.values()]
      .filter(({ owner, isTemporary }) => owner === tenant && !isTemporary)
      .map((record) => this.#countedOf(record));
  }

  /**
   * Brings the ledger and the backends into agreement after a start: removes incomplete snapshots and those that only
   * one side knows. Snapshots whose backend is no longer enabled stay as they are.
   */
  async reconcile(): Promise<void> {
    const { backends, ledger, log } = this.#options;
    const records = await ledger.snapshots();
    await Promise.all(
      backends.all().map(async (backend) => {
        const kept = new Set(await backend.snapshots?.list());
        for (const record of records.filter((one) => one.backend === backend.name)) {
          const isThere = kept.delete(record.id);
          const isWanted = record.state === "ready" && !record.isTemporary;
          if (isWanted && isThere) this.#hold(record);
          else {
            if (isWanted) log.warn({ snapshot: record.id }, "a snapshot is lost");
            if (isThere) kept.add(record.id);
            await ledger.removeSnapshot(record.id);
          }
        }
        for (const id of kept) {
          log.warn({ snapshot: id, backend: backend.name }, "removing what is left of a snapshot");
          await backend.snapshots?.remove(id);
        }
      }),
    );
  }

  start(): void {
    this.#reaper.start();
  }

  close(): void {
    this.#reaper.stop();
  }

  #find(tenant: string, reference: string): SnapshotRecord | undefined {
    const { name, tag } = parseTemplateReference(reference);
    const full = `${name}:${tag}`;
    return this.#ready(tenant).find((record) => `${record.id}:default` === full || record.name === full);
  }

  #ready(tenant: string): readonly SnapshotRecord[] {
    return this.#records
      .readyOf(tenant)
      .toSorted((a, b) => b.takenAtMs - a.takenAtMs || (a.id < b.id ? -1 : 1));
  }

  async #remove(tenant: string, id: SnapshotId): Promise<void> {
    const record = this.#records.get(id);
    const isRemovable = record?.state === "ready" || this.#records.isBeingRemoved(id);
    if (record === undefined || !isRemovable || record.owner !== tenant)
      throw new SandboxError("snapshot_not_found", `snapshot '${id}' not found`);
    await this.#discard(record);
  }

  async #fork(
    held: HeldSandbox,
    { count, ...wanted }: ForkRequest,
    signal: AbortSignal | undefined,
  ): Promise<readonly Forked[]> {
    const { sandboxes, settings } = this.#options;
    if (held.record.state === "paused") {
      const text = `Sandbox '${held.record.id}' is paused and cannot be forked; resume it first`;
      throw new SandboxError("sandbox_state_conflict", text);
    }
    if (wanted.readinessProbe !== undefined) checkReadinessProbe(wanted.readinessProbe, settings.readiness);
    return this.#lend(held, async ({ id: template }) => {
      const like = { ...createdLike(held.record), ...wanted, template };
      const made = await Promise.allSettled(
        Array.from({ length: count }, () => sandboxes.create(like, signal)),
      );
      return made.map((one) =>
        one.status === "fulfilled" ? { sandbox: one.value } : { error: one.reason as unknown },
      );
    });
  }

  async #lend<T>(held: HeldSandbox, use: (snapshot: SnapshotRecord) => Promise<T>): Promise<T> {
    const snapshot = await this.#take(held, { name: undefined, isTemporary: true });
    try {
      return await use(snapshot);
    } finally {
      // The backend frees its data with the last sandbox of it.
      await this.#discard(snapshot).catch(() => {});
    }
  }

  #checkName(text: string, tenant: string): string {
    const { name, tag } = parseTemplateReference(text, { isNew: true });
    if (this.#options.templates.all(tenant).some((one) => one.name === name || one.aliases.includes(name))) {
      throw new SandboxError("snapshot_name_taken", `'${name}' is the name of a template`);
    }
    return `${name}:${tag}`;
  }

  async #take(
    held: HeldSandbox,
    { name, isTemporary }: Pick<SnapshotRecord, "name" | "isTemporary">,
  ): Promise<SnapshotRecord> {
    const { metrics, clock, log } = this.#options;
    const { id, owner, backend, template, build, limits } = held.record;
    // No await when it is idle: of two simultaneous calls the second one must see the first.
    while (held.isResuming()) await held.change?.done.catch(() => {});
    const { state } = held.record;
    if (state !== "running" && state !== "paused") {
      const text = `Sandbox '${id}' cannot be snapshotted while in '${state}' state`;
      throw new SandboxError("sandbox_state_conflict", text);
    }
    const { snapshots } = held.handle;
    if (snapshots === undefined) {
      throw new SandboxError(
        "snapshots_unsupported",
        `backend '${backend}' on this host does not support snapshots`,
      );
    }
    // That of a fork goes with it.
    if (!isTemporary) {
      this.#requireRoom(owner);
      this.#options.admitStorage(owner, this.#countedOf(held.record));
    }
    const record: SnapshotRecord = {
      id: newId("snapshot"),
      owner,
      state: "taking",
      name,
      isTemporary,
      backend,
      template,
      ...(build && { build }),
      sandboxId: id,
      takenAtMs: clock.now(),
      limits,
    };
    this.#records.set(record.id, record);
    try {
      const made = await held.during("snapshotting", () =>
        this.#make(record, held, () => snapshots.take(record.id)),
      );
      metrics.snapshotSeconds.observe((clock.now() - record.takenAtMs) / 1000);
      log.info({ sandbox: id, snapshot: record.id, name }, "snapshot taken");
      return made;
    } catch (error) {
      held.throwIfEnding();
      log.error({ sandbox: id, err: error }, "taking a snapshot failed");
      const text = `no snapshot could be taken of sandbox "${id}"`;
      throw new SandboxError("snapshot_failed", text, { cause: error });
    }
  }

  /** A snapshot may get as large as the disk of its sandbox. */
  #countedOf({ backend, limits }: Pick<SnapshotRecord, "backend" | "limits">): CountedStorage {
    const usual = this.#options.backends.all().find(({ name }) => name === backend)?.defaultLimits;
    return { kind: "snapshot", sizeMiB: limits.diskMiB ?? usual?.diskMiB ?? 0 };
  }

  #requireRoom(tenant: string): void {
    const { settings, tenants } = this.#options;
    const all = [...this.#records.values()].filter(({ isTemporary }) => !isTemporary);
    const own = all.filter(({ owner }) => owner === tenant).length;
    const refusal = tenants.refusal({ tenant, most: settings.maximumSnapshots, used: all.length, own });
    if (refusal === undefined) return;
    const text = `you have reached the maximum number of snapshots (${refusal}): see sandboxes.maximumSnapshots`;
    throw new SandboxError("snapshot_limit_reached", text);
  }

  async #make(record: SnapshotRecord, held: HeldSandbox, take: () => Promise<void>): Promise<SnapshotRecord> {
    const { ledger, events } = this.#options;
    try {
      await ledger.writeSnapshot(record);
      await take();
      if (record.name !== undefined) await this.#freeName(record.owner, record.name);
      const ready: SnapshotRecord = { ...record, state: "ready" };
      const detail = { snapshot: ready.id, name: ready.name };
      await ledger.writeSnapshot(
        ready,
        ready.isTemporary ? undefined : events.of("snapshotted", held.record, detail),
      );
      events.wake();
      this.#hold(ready);
      return ready;
    } catch (error) {
      // All or nothing is the backend's promise, but not that of the ledger.
      await this.#discard(record).catch(() => {});
      throw error;
    }
  }

  /** The newest snapshot of a name has it; older ones are found by their ids. */
  async #freeName(owner: string, name: string): Promise<void> {
    for (const other of this.#records.values()) {
      if (other.owner !== owner || other.name !== name || other.state !== "ready") continue;
      const nameless: SnapshotRecord = { ...other, name: undefined };
      this.#records.set(other.id, nameless);
      await this.#options.ledger.writeSnapshot(nameless);
    }
  }

  #hold(record: SnapshotRecord): void {
    const { snapshotsKept } = this.#options.settings;
    this.#records.set(record.id, record);
    if (snapshotsKept !== undefined) this.#reaper.set(record.id, record.takenAtMs + snapshotsKept);
  }

  /** As `RemovableRecords.discard`. */
  #discard(record: SnapshotRecord): Promise<void> {
    const { backends, ledger } = this.#options;
    this.#reaper.delete(record.id);
    return this.#records.discard(record, async (removing) => {
      await ledger.writeSnapshot(removing);
      await backends.get(removing.backend).snapshots?.remove(removing.id);
      await ledger.removeSnapshot(removing.id);
    });
  }
}
