import type { Registry } from "prom-client";
import { createSlot } from "../kernel/token.js";
import type { Clock } from "../kernel/clock.js";
import { runAs } from "../kernel/owner.js";
import type { Patience } from "../kernel/time.js";
import { KnownTenants } from "../bounds/tenants.js";
import type { Logger } from "../observe/logger.js";
import type { Admission, CountedStorage } from "./model/admissions.js";
import type { AddressLeases } from "./contract/address-leases.js";
import { BackendRegistry, chooseBackends, firstOrOnly } from "./backends/choose-backends.js";
import { AddedTemplates } from "./templates/templates.js";
import type { Placement } from "./life/sandboxes.js";
import { AddedStartups } from "./life/startups.js";
import type { SandboxServices } from "./ledger/sandbox-services.js";
import { EventRelay } from "./ledger/event-relay.js";
import type { Ledger } from "./ledger/ledger.js";
import { reconcile } from "./life/reconcile.js";
import { type SharedRecord, UsedSharedTemplates } from "./model/shared.js";
import { sandboxMetrics } from "./model/sandbox-metrics.js";
import { SandboxRegistry } from "./life/sandbox-registry.js";
import type { SandboxesConfig } from "./model/sandboxes-config.js";
import { SqliteLedger } from "./ledger/sqlite-ledger.js";
import { SnapshotRegistry } from "./snapshots/snapshot-registry.js";
import { DEFAULT_TENANT } from "./model/tenant-records.js";
import { Teardown } from "./backends/teardown.js";
import { VolumeContents } from "./volumes/volume-contents.js";
import { VolumeRegistry } from "./volumes/volume-registry.js";
import { AddedWarmUps } from "./warm/warm-ups.js";
import { warmPools } from "./warm/warm-pool.js";

export interface SandboxDomainOptions {
  readonly config: SandboxesConfig;
  /** Directory of the SQLite ledger. */
  readonly dataDir: string;
  readonly clock: Clock;
  readonly log: Logger;
  /** Receives the metrics `coppice_sandboxes_…`. */
  readonly metrics: Registry;
  /** Limits the time of backends' start-up steps; unlimited when absent. */
  readonly patience?: Patience;
  /** Called at the start; returns a ledger that replaces the SQLite file in `dataDir`, if any. */
  readonly ledger?: (() => Ledger | undefined) | undefined;
}

export type SandboxDomain = ReturnType<typeof createSandboxDomain>;

/** Wires the sandbox domain. Has no effects before `start`. */
export function createSandboxDomain(options: SandboxDomainOptions) {
  const { config: settings, dataDir, clock, log } = options;
  const { patience = async (plugin, _step, run) => runAs(plugin, run) } = options;
  const backends = new BackendRegistry();
  const admissions: Admission[] = [];
  const tenants = new KnownTenants(DEFAULT_TENANT);
  const shared = createSlot<SharedRecord>("another plugin records the sandboxes of several servers");
  const ledger = ledgerHandle(
    () => options.ledger?.() ?? new SqliteLedger({ dataDir, endedKept: settings.endedKept }),
  );
  const metrics = sandboxMetrics({
    registry: options.metrics,
    settings,
    now: { sandboxes: () => registry.held(), eventsBehindMs: () => events.behindMs() },
  });
  const teardown = new Teardown({ settings, metrics, clock, log });
  const warmUps = new AddedWarmUps();
  const startups = new AddedStartups();
  const placements = createSlot<Placement>("another plugin chooses the servers of sandboxes");
  const events = new EventRelay({ settings, metrics, ledger, clock, log });
  const pools = warmPools(options.metrics);
  const templates = new AddedTemplates(settings.templates, (backend) => {
    const all = backends.all();
    // Before the choice: the default unless this host cannot run it.
    const likely = firstOrOnly(
      [settings.defaultBackend ?? []].flat(),
      all.map(({ name }) => name),
    );
    const name = backend ?? backends.defaultName ?? likely;
    return all.find((one) => one.name === name)?.defaultLimits;
  });
  const admitStorage = (tenant: string, wanted: CountedStorage): void => {
    const existing = [...volumes.counted(tenant), ...snapshots.counted(tenant)];
    for (const { checkStorage } of admissions) checkStorage?.(tenant, wanted, existing);
  };
  const services: SandboxServices = {
    settings,
    backends,
    ledger,
    shared,
    teardown,
    metrics,
    events,
    tenants,
    clock,
    log,
  };
  const registry = new SandboxRegistry({
    ...services,
    admissions,
    snapshots: { of: (tenant) => snapshots.of(tenant) },
    templates,
    volumes: { of: (tenant) => volumes.of(tenant), released: (ids) => volumes.released(ids) },
    warmUps,
    startups,
    pools,
    placement: placements,
  });
  const snapshots = new SnapshotRegistry({ ...services, admitStorage, sandboxes: registry, templates });
  const contents = new VolumeContents(services);
  const volumes = new VolumeRegistry({
    ...services,
    admitStorage,
    contents,
    isMounted: (id) => registry.isMounted(id),
  });
  return {
    templates,
    leases: leasesIn(ledger),
    warmUps,
    startups,
    placements,
    sharedRecords: shared,
    sharedTemplates: new UsedSharedTemplates(),
    events,
    sandboxes: registry,
    snapshots,
    volumes,
    backends,
    tenants,
    admissions: { add: (admission: Admission) => void admissions.push(admission) },
    ledger,
    /**
     * Opens the ledger, checks every backend, adopts or removes the last server's sandboxes, and starts the reaper.
     * @throws BootError with every reason why this cannot work.
     */
    async start(): Promise<void> {
      await chooseBackends(backends, settings, { templates, log, patience });
      await ledger.open();
      await reconcile({ ...services, registry, patience });
      // After the sandboxes: snapshots in use are known then.
      await snapshots.reconcile();
      await volumes.reconcile();
      registry.start();
      snapshots.start();
    },
    /** Starts to fill the warm pools. Returns at once. */
    fillPools: () => pools.start(),
    /** Starts to deliver events to their recorders. Returns at once. */
    tellEvents: () => events.start(),
    /** Refuses new sandboxes from now on: they would end with the server that made them. */
    refuseNew: () => registry.refuseNew(),
    /** Ends or keeps the sandboxes as configured and closes the ledger. Safe after a failed start. */
    async stop(): Promise<void> {
      snapshots.close();
      await contents.closeAll();
      await registry.close(settings.onShutdown);
      teardown.stop();
      await events.stop();
      await ledger.close();
    },
  };
}

/** A ledger that is chosen when it is first used: a plugin may bring one after the domain is wired. */
function ledgerHandle(choose: () => Ledger): Ledger {
  let chosen: Ledger | undefined;
  return new Proxy({} as Ledger, {
    get(_, name) {
      chosen ??= choose();
      const member: unknown = Reflect.get(chosen, name);
      return typeof member === "function" ? member.bind(chosen) : member;
    },
  });
}

function leasesIn(ledger: Ledger): AddressLeases {
  return {
    of: (network) => ({
      all: async () => ledger.leases(network),
      heldBy: async (holder) => ledger.leasedTo({ network, holder }),
      isFree: async (address) => !(await ledger.isLeased(address)),
      take: async (holder, addresses) => ledger.lease({ network, holder, addresses }),
      release: async (holder) => ledger.endLeases({ network, holder }),
    }),
  };
}
