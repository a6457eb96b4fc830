import { Listeners, Targets } from "../http/surfaces/targets.js";
import { Peers } from "../http/peers/peers.js";
import { Clock } from "../kernel/clock.js";
import { Tenants } from "../bounds/tenants.js";
import { Greeting } from "../observe/greeting.js";
import type { Resolved } from "../plugin/plugin.js";
import { AddressLeases } from "../sandbox/contract/address-leases.js";
import { Backends } from "../sandbox/contract/backend.js";
import { Sandboxes } from "../sandbox/life/sandboxes.js";
import { Placements } from "../sandbox/life/placements.js";
import { Startups } from "../sandbox/life/startups.js";
import { Admissions } from "../sandbox/model/admissions.js";
import { SharedRecords } from "../sandbox/model/shared-records.js";
import { SharedTemplates } from "../sandbox/model/shared-templates.js";
import { SandboxEvents } from "../sandbox/model/sandbox-events.js";
import { Snapshots } from "../sandbox/model/snapshots.js";
import { TenantRecords } from "../sandbox/model/tenant-records.js";
import { Volumes } from "../sandbox/model/volumes.js";
import { Templates } from "../sandbox/templates/templates.js";
import { WarmUps } from "../sandbox/warm/warm-ups.js";

const TOKENS = {
  sandboxes: Sandboxes,
  snapshots: Snapshots,
  events: SandboxEvents,
  templates: Templates,
  volumes: Volumes,
  backends: Backends,
  leases: AddressLeases,
  warmUps: WarmUps,
  startups: Startups,
  placements: Placements,
  sharedRecords: SharedRecords,
  tenantRecords: TenantRecords,
  sharedTemplates: SharedTemplates,
  admissions: Admissions,
  tenants: Tenants,
  clock: Clock,
  targets: Targets,
  listeners: Listeners,
  peers: Peers,
  greeting: Greeting,
} as const;

/** Tokens that a plugin may require without another plugin that provides them. */
export const BUILT_IN: ReadonlySet<symbol> = new Set<symbol>(Object.values(TOKENS));

export function builtInServices(services: Resolved<typeof TOKENS>): Map<symbol, unknown> {
  const names = Object.keys(TOKENS) as (keyof typeof TOKENS)[];
  return new Map<symbol, unknown>(names.map((name) => [TOKENS[name], services[name]]));
}
