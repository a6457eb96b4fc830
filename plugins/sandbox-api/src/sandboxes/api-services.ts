import type {
  Capacities,
  Clock,
  LiveSandbox,
  Peers,
  RequestCarrier,
  Router,
  Sandboxes,
  Snapshots,
  Templates,
} from "@coppice/core";
import type { Backends } from "@coppice/core/backend";
import type { MetricsHistory } from "../bodies/metrics-history.js";
import type { SandboxApiConfig } from "../sandbox-api-config.js";

/** The parts of the server that routes of the control plane use. */
export interface ApiServices {
  readonly config: SandboxApiConfig;
  readonly clock: Clock;
  readonly backends: Backends;
  readonly templates: Templates;
  readonly capacities: Capacities;
  readonly history: MetricsHistory;
  /** The domain of sandboxes for clients. */
  readonly domain: () => string | undefined;
  /** Sandboxes and snapshots of a request's tenant. */
  readonly sandboxes: (carrier: RequestCarrier) => Sandboxes;
  /** Those of all tenants. @throws SandboxError permission_denied for others than the operator */
  readonly everySandbox: (carrier: RequestCarrier) => readonly LiveSandbox[];
  readonly snapshots: (carrier: RequestCarrier) => ReturnType<Snapshots["of"]>;
  /** Other servers, which have sandboxes of the same tenants. */
  readonly peers: Peers;
}

export type Context = Parameters<Parameters<Router["get"]>[1]>[0];
