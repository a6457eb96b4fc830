import { Counter, Gauge, Histogram, type Registry } from "prom-client";
import type { NodeRecord } from "../membership/node-record.js";
import { type FleetSandbox, SANDBOXES } from "../records/fleet-sandbox.js";
import { type Change, type FleetStore, StoreUnavailable, UnknownOutcome } from "../store/fleet-store.js";

export interface FleetMetricsOptions {
  readonly registry: Registry;
  /** Called at each scrape. */
  readonly now: {
    readonly servers: () => Iterable<readonly [string, Pick<NodeRecord, "stoppedAtMs">]>;
    readonly sandboxes: () => number;
    /** Time until this server's place ends, unless it is renewed. */
    readonly leaseMs: () => number;
    /** The revision up to which the map of sandboxes is complete. */
    readonly revision: () => number;
    readonly connections: () => { readonly kept: number; readonly opened: number };
  };
}

interface Named {
  readonly name: string;
  readonly help: string;
}

const BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5];
const OPERATIONS = ["get", "list", "commit", "grant", "renew", "revoke"] as const;

export function fleetMetrics({ registry, now }: FleetMetricsOptions) {
  const registers = [registry];
  const counter = (named: Named): Counter => new Counter({ ...named, registers });
  const gauge = (named: Named, read: () => number): void => {
    new Gauge({
      ...named,
      registers,
      collect() {
        this.set(read());
      },
    });
  };
  const seconds = new Histogram({
    name: "coppice_fleet_store_seconds",
    help: "Time that the fleet's store took to answer, by operation.",
    labelNames: ["operation"],
    buckets: BUCKETS,
    registers,
  });
  const failures = counter({
    name: "coppice_fleet_store_failures_total",
    help: "Operations that the fleet's store did not answer.",
  });
  const hopFailures = counter({
    name: "coppice_fleet_hop_failures_total",
    help: "Requests that could not be passed on, because the other server was not reached.",
  });
  new Counter({
    name: "coppice_fleet_connections_total",
    help: "Connections to other servers that requests got: kept ones, and newly opened ones.",
    labelNames: ["how"],
    registers,
    collect() {
      this.reset();
      for (const [how, count] of Object.entries(now.connections())) this.inc({ how }, count);
    },
  });
  const lost = counter({
    name: "coppice_fleet_sandboxes_lost_total",
    help: "Sandboxes of all servers whose server was lost.",
  });
  const placements = new Counter({
    name: "coppice_fleet_placements_total",
    help: "Requests for new sandboxes by where they went: own or foreign.",
    labelNames: ["server"],
    registers,
  });
  for (const server of ["own", "foreign"]) placements.inc({ server }, 0);
  new Gauge({
    name: "coppice_fleet_servers",
    help: "Servers that this one knows, by state: member or away.",
    labelNames: ["state"],
    registers,
    collect() {
      const counts = { member: 0, away: 0 };
      for (const [, { stoppedAtMs }] of now.servers())
        counts[stoppedAtMs === undefined ? "member" : "away"] += 1;
      for (const [state, count] of Object.entries(counts)) this.set({ state }, count);
    },
  });
  gauge(
    { name: "coppice_fleet_sandboxes", help: "Sandboxes of all servers that this one knows, lost ones too." },
    now.sandboxes,
  );
  gauge(
    {
      name: "coppice_fleet_lease_seconds",
      help: "Time until this server stops serving unless its lease is renewed; 0 without a place in the fleet.",
    },
    () => now.leaseMs() / 1000,
  );
  /** The oldest change by this server that its own map does not have yet, as far as is known. */
  let unseen: { readonly revision: number; readonly atMs: number } | undefined;
  gauge(
    {
      name: "coppice_fleet_watch_behind_seconds",
      help: "Age of a change by this server that its map does not have yet.",
    },
    () => {
      if (unseen === undefined || now.revision() >= unseen.revision) return 0;
      return (performance.now() - unseen.atMs) / 1000;
    },
  );

  const committed = (revision: number): void => {
    if (unseen === undefined || now.revision() >= unseen.revision)
      unseen = { revision, atMs: performance.now() };
  };
  return {
    hopFailed: () => hopFailures.inc(),
    placed: (isForeign: boolean) => placements.inc({ server: isForeign ? "foreign" : "own" }),
    recordChanged(known: FleetSandbox | undefined, before: FleetSandbox | undefined) {
      if (known?.isMoved === true) return;
      if (known?.lostAtMs !== undefined && before !== undefined && before.lostAtMs === undefined) lost.inc();
    },
    /** The same store, whose operations are measured. */
    measured(store: FleetStore): FleetStore {
      const measure = async <T>(
        operation: (typeof OPERATIONS)[number],
        run: () => Promise<T>,
      ): Promise<T> => {
        const startMs = performance.now();
        try {
          return await run();
        } catch (error) {
          if (error instanceof StoreUnavailable || error instanceof UnknownOutcome) failures.inc();
          throw error;
        } finally {
          seconds.observe({ operation }, (performance.now() - startMs) / 1000);
        }
      };
      return {
        get: (key) => measure("get", () => store.get(key)),
        list: (prefix) => measure("list", () => store.list(prefix)),
        each: (...args) => measure("list", () => store.each(...args)),
        async commit(checks, changes) {
          const revision = await measure("commit", () => store.commit(checks, changes));
          if (revision !== undefined && changes.some(isOfSandbox)) committed(revision);
          return revision;
        },
        grant: (ttlMs) => measure("grant", () => store.grant(ttlMs)),
        renew: (lease, signal) => measure("renew", () => store.renew(lease, signal)),
        revoke: (lease) => measure("revoke", () => store.revoke(lease)),
        watch: (prefix, after, signal) => store.watch(prefix, after, signal),
        lacksMajority: (signal) => store.lacksMajority(signal),
        members: (signal) => store.members(signal),
        close: () => store.close(),
      };
    },
  };
}

/** True for a put, which makes a change in any case. */
function isOfSandbox(change: Change): boolean {
  return "put" in change && change.put.startsWith(SANDBOXES);
}
