import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { type MetricObjectWithValues, type MetricValueWithName, Registry } from "prom-client";
import type { z } from "zod";
import { SandboxError } from "../../kernel/errors.js";
import { createLogger } from "../../observe/logger.js";
import { fakeClock, type FakeClock } from "../../testing/fake-clock.js";
import { MemoryLeases, MemoryBackend, type MemoryBackendOptions } from "../../testing/memory-backend.js";
import type { Sandbox, SandboxId, SandboxSpec, SnapshotId, VolumeId } from "../contract/backend.js";
import { createSandboxDomain, type SandboxDomain } from "../domain.js";
import type { AddressLease } from "../contract/address-leases.js";
import type {
  EndedSandbox,
  Leaseholder,
  LeaseRequest,
  Ledger,
  LedgerEntry,
  LedgerNote,
} from "../ledger/ledger.js";
import type { SandboxRecord } from "../model/live-sandbox.js";
import type { SandboxEvent } from "../model/sandbox-event.js";
import type { CreateSandbox } from "../life/sandboxes.js";
import type { SnapshotRecord } from "../model/snapshots.js";
import { sandboxesConfig } from "../model/sandboxes-config.js";
import type { VolumeRecord } from "../model/volumes.js";

export const MINUTE_MS = 60_000;
export const base: CreateSandbox = { template: "base", timeoutMs: 5 * MINUTE_MS, secure: true };

/** Ignores aborts: completes every creation. */
class DeafBackend extends MemoryBackend {
  override provision(spec: SandboxSpec): Promise<Sandbox> {
    return super.provision(spec, new AbortController().signal);
  }
}

/** An in-memory ledger whose writes can fail. */
export class FragileLedger implements Ledger {
  readonly #entries = new Map<SandboxId, Omit<LedgerEntry, "awaited">>();
  readonly #snapshots = new Map<SnapshotId, SnapshotRecord>();
  readonly #volumes = new Map<VolumeId, VolumeRecord>();
  readonly #ended = new Map<SandboxId, EndedSandbox>();
  readonly #awaited = new Map<string, SandboxEvent>();
  readonly #outbox = new Map<string, SandboxEvent>();
  readonly #leases = new MemoryLeases();
  isFailing: (record: SandboxRecord) => boolean = () => false;

  async open(): Promise<void> {}
  async check(): Promise<void> {}
  async close(): Promise<void> {}

  async entries(): Promise<readonly LedgerEntry[]> {
    return [...this.#entries.values()].map((entry) => ({
      ...entry,
      awaited: [...this.#awaited.values()].filter(({ sandboxId }) => sandboxId === entry.record.id),
    }));
  }

  async write(record: SandboxRecord, note: LedgerNote = {}): Promise<void> {
    if (this.isFailing(record)) throw new Error("disk full");
    const { endReason, happened, awaited, withdrawn = "" } = note;
    this.#entries.set(record.id, { record, endReason });
    this.#awaited.delete(withdrawn);
    if (awaited !== undefined) this.#awaited.set(awaited.id, awaited);
    this.#tell(happened);
  }

  async remove(id: SandboxId): Promise<void> {
    this.#entries.delete(id);
    this.#withdrawAll(id);
  }

  async end(ended: EndedSandbox, happened?: SandboxEvent): Promise<void> {
    this.#entries.delete(ended.id);
    this.#withdrawAll(ended.id);
    this.#ended.set(ended.id, ended);
    this.#tell(happened);
  }

  async snapshots(): Promise<readonly SnapshotRecord[]> {
    return [...this.#snapshots.values()];
  }

  async writeSnapshot(record: SnapshotRecord, happened?: SandboxEvent): Promise<void> {
    this.#snapshots.set(record.id, record);
    this.#tell(happened);
  }

  async removeSnapshot(id: SnapshotId): Promise<void> {
    this.#snapshots.delete(id);
  }

  async confirm(event: SandboxEvent): Promise<void> {
    if (this.#awaited.delete(event.id)) this.#tell(event);
  }

  async tell(event: SandboxEvent): Promise<void> {
    this.#tell(event);
  }

  async outbox(limit: number): Promise<readonly SandboxEvent[]> {
    return [...this.#outbox.values()].slice(0, limit);
  }

  async clearOutbox(ids: readonly string[]): Promise<void> {
    for (const id of ids) this.#outbox.delete(id);
  }

  async trimOutbox(most: number): Promise<number> {
    const surplus = [...this.#outbox.keys()].slice(0, Math.max(0, this.#outbox.size - most));
    for (const id of surplus) this.#outbox.delete(id);
    return surplus.length;
  }

  async volumes(): Promise<readonly VolumeRecord[]> {
    return [...this.#volumes.values()];
  }

  async writeVolume(record: VolumeRecord): Promise<void> {
    this.#volumes.set(record.id, record);
  }

  async removeVolume(id: VolumeId): Promise<void> {
    this.#volumes.delete(id);
  }

  async leases(network: string): Promise<readonly AddressLease[]> {
    return this.#leases.of(network).all();
  }

  async leasedTo({ network, holder }: Leaseholder): Promise<readonly string[]> {
    return this.#leases.of(network).heldBy(holder);
  }

  async isLeased(address: string): Promise<boolean> {
    return !(await this.#leases.of("").isFree(address));
  }

  async lease({ network, holder, addresses }: LeaseRequest): Promise<string | undefined> {
    return this.#leases.of(network).take(holder, addresses);
  }

  async endLeases({ network, holder }: Leaseholder): Promise<void> {
    await this.#leases.of(network).release(holder);
  }

  async findEnded(id: SandboxId): Promise<EndedSandbox | undefined> {
    return this.#ended.get(id);
  }

  #tell(event: SandboxEvent | undefined): void {
    if (event !== undefined) this.#outbox.set(event.id, event);
  }

  #withdrawAll(id: SandboxId): void {
    for (const { id: event, sandboxId } of this.#awaited.values())
      if (sandboxId === id) this.#awaited.delete(event);
  }
}

type MetricValue = Pick<
  MetricObjectWithValues<MetricValueWithName<string>>["values"][number],
  "labels" | "value"
>;

/** A sandbox domain over a memory backend, with a clock that stands still. */
export interface Fixture extends SandboxDomain {
  readonly backend: MemoryBackend;
  readonly clock: FakeClock;
  readonly metric: (name: string, isCounted?: (value: MetricValue) => boolean) => Promise<number>;
}

export interface DomainOptions {
  readonly script?: MemoryBackendOptions;
  readonly settings?: z.input<typeof sandboxesConfig>;
  /** Its creations ignore aborts. */
  readonly isDeaf?: boolean;
  /** In memory when absent. */
  readonly ledger?: Ledger;
}

/** A record as the ledger reads it: without fields that are undefined. */
export function asStored<T>(record: T): T {
  return JSON.parse(JSON.stringify(record)) as T;
}

/** The record of a sandbox that was created now, of the template `base`, with nothing chosen. */
export const plainRecord = (
  { id, accessToken }: Pick<SandboxRecord, "id" | "accessToken">,
  nowMs: number,
): SandboxRecord => ({
  id,
  accessToken,
  backend: "memory",
  template: "base",
  snapshot: undefined,
  state: "running",
  startedAtMs: nowMs,
  endsAtMs: nowMs + 5 * MINUTE_MS,
  timeoutMs: 5 * MINUTE_MS,
  onTimeout: "kill",
  autoResume: false,
  trafficAccessToken: undefined,
  maskRequestHost: undefined,
  owner: "default",
  allowInternetAccess: true,
  egress: undefined,
  mounts: [],
  metadata: {},
  environment: {},
  limits: {},
});

/** Starts a domain on its own data directory; both end with the test. */
export async function startDomain(
  context: TestContext,
  { script = {}, settings = {}, isDeaf = false, ledger }: DomainOptions = {},
): Promise<Fixture> {
  const dataDir = mkdtempSync(join(tmpdir(), "coppice-sandboxes-"));
  const clock = fakeClock();
  const metrics = new Registry();
  const backend = new (isDeaf ? DeafBackend : MemoryBackend)(script);
  const config = sandboxesConfig.parse(settings);
  const domain = createSandboxDomain({
    config,
    dataDir,
    clock,
    log: createLogger("silent"),
    metrics,
    ledger: () => ledger,
  });
  context.after(async () => {
    const stopped = domain.stop();
    await clock.advance(10 * MINUTE_MS);
    await stopped;
    rmSync(dataDir, { recursive: true, force: true });
  });
  domain.backends.add(backend);
  await domain.start();
  const metric: Fixture["metric"] = async (name, isCounted = () => true) => {
    const values = (await metrics.getSingleMetric(`coppice_sandboxes_${name}`)?.get())?.values ?? [];
    return values.filter(isCounted).reduce((total, { value }) => total + value, 0);
  };
  return { ...domain, backend, clock, metric };
}

/** For assert.rejects: a SandboxError of that code and message. */
export function fails(code: string, message: RegExp): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof SandboxError, `not a SandboxError: ${String(error)}`);
    assert.equal(error.code, code);
    assert.match(error.message, message);
    return true;
  };
}

export async function assertNothingLeft({ backend, ledger, sandboxes, clock }: Fixture): Promise<void> {
  assert.deepEqual(backend.alive, { sandboxes: 0, processes: 0, connections: 0, openFiles: 0 });
  assert.deepEqual(await ledger.entries(), []);
  assert.deepEqual(sandboxes.list(), []);
  assert.equal(clock.pending, 0, "a timer is still armed");
}
