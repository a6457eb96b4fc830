import { cpuSharePercent } from "@coppice/core/backend";
import {
  type Capacities,
  ENVD_VERSION,
  type LiveSandbox,
  permits,
  type RequestCarrier,
  type SandboxRecord,
} from "@coppice/core";
import type { Sample } from "./metrics-history.js";
import { mountBody } from "../volumes/volume-files.js";

type Capacity = Awaited<ReturnType<Capacities["of"]>>;

// Deprecated, but every response must have it.
const CLIENT_ID = "coppice";

// Required field: stands for a sandbox without an end.
const NEVER = "9999-12-31T23:59:59.999Z";

function identity({ id, template, snapshot }: SandboxRecord) {
  return {
    templateID: snapshot ?? template,
    alias: template,
    sandboxID: id,
    clientID: CLIENT_ID,
    envdVersion: ENVD_VERSION,
  };
}

/** What a body depends on beside the record of its sandbox. */
export interface SandboxBodyOptions {
  /** The request, whose sender may not be allowed to know the tokens. */
  readonly carrier: RequestCarrier;
  readonly domain: string | undefined;
}

/** A sandbox's token lets its bearer be root inside, so it is for those who may run commands. */
function accessTokenFor({ accessToken }: SandboxRecord, carrier: RequestCarrier) {
  return accessToken !== undefined && permits(carrier, "exec") ? { envdAccessToken: accessToken } : {};
}

/** The answer to create and connect. */
export function sandboxBody({ record }: LiveSandbox, { carrier, domain }: SandboxBodyOptions) {
  return {
    ...identity(record),
    ...accessTokenFor(record, carrier),
    trafficAccessToken: (permits(carrier, "exec") ? record.trafficAccessToken : undefined) ?? null,
    // Anything but null overrides the client's own domain.
    domain: domain ?? null,
  };
}

/** What bodies of sandboxes have beside their records. */
export interface SandboxDetails {
  readonly capacity: Capacity;
  /** Name of its template. */
  readonly alias: string;
}

export function listedSandboxBody({ record }: LiveSandbox, { capacity, alias }: SandboxDetails) {
  return {
    ...identity(record),
    alias,
    startedAt: new Date(record.startedAtMs).toISOString(),
    endAt: record.endsAtMs === undefined ? NEVER : new Date(record.endsAtMs).toISOString(),
    cpuCount: Math.max(Math.round(capacity.cpuCount), 1),
    memoryMB: Math.round(capacity.memoryMiB),
    diskSizeMB: Math.round(capacity.diskMiB),
    state: publicState(record),
    metadata: record.metadata,
    volumeMounts: record.mounts.map(mountBody),
  };
}

/** Body of GET /sandboxes/{sandboxID}. */
export function sandboxDetailBody(
  sandbox: LiveSandbox,
  {
    carrier,
    domain,
    isOffline,
    ...details
  }: SandboxDetails & SandboxBodyOptions & { readonly isOffline: boolean },
) {
  const { allowInternetAccess, autoResume, egress, onTimeout, trafficAccessToken, maskRequestHost } =
    sandbox.record;
  return {
    ...listedSandboxBody(sandbox, details),
    ...accessTokenFor(sandbox.record, carrier),
    domain: domain ?? null,
    allowInternetAccess: allowInternetAccess && !isOffline,
    network: {
      allowPublicTraffic: trafficAccessToken === undefined,
      ...egress,
      ...(maskRequestHost === undefined ? {} : { maskRequestHost }),
    },
    lifecycle: { autoResume, onTimeout },
  };
}

export function limitsBody(sandboxID: string, { cpuCount, memoryMiB, diskMiB }: Capacity) {
  return { sandboxID, cpuCount, memoryMB: Math.round(memoryMiB), diskSizeMB: Math.round(diskMiB) };
}

export function metricBody({ stats, atMs }: Sample) {
  return {
    timestamp: new Date(atMs).toISOString(),
    timestampUnix: Math.floor(atMs / 1000),
    cpuCount: stats.cpuCount,
    cpuUsedPct: cpuSharePercent(stats),
    memUsed: stats.memoryUsedBytes,
    memTotal: stats.memoryTotalBytes,
    memCache: stats.memoryCacheBytes,
    diskUsed: stats.diskUsedBytes,
    diskTotal: stats.diskTotalBytes,
  };
}

/** The two states that clients know. */
export function publicState({ state }: SandboxRecord): "running" | "paused" {
  return state === "paused" ? "paused" : "running";
}
