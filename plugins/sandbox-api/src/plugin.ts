import {
  Capacities,
  Clock,
  definePlugin,
  Greeting,
  Listeners,
  Peers,
  requireOperator,
  Sandboxes,
  sandboxesOf,
  Snapshots,
  Templates,
  tenantOf,
  Volumes,
} from "@coppice/core";
import { Backends } from "@coppice/core/backend";
import { MetricsHistory } from "./bodies/metrics-history.js";
import { publicDomain, sdkEnvironment } from "./sdk-environment.js";
import { sandboxApiConfig } from "./sandbox-api-config.js";
import type { ApiServices } from "./sandboxes/api-services.js";
import { mountCreation } from "./sandboxes/create-routes.js";
import { mountReads } from "./sandboxes/read-routes.js";
import { mountStateChanges } from "./sandboxes/state-routes.js";
import { mountSnapshots } from "./snapshots/snapshot-routes.js";
import { mountVolumeContents, volumeGuard } from "./volumes/volume-content-routes.js";
import { mountVolumes } from "./volumes/volume-routes.js";
import { REASONS } from "./reasons.js";

/** The E2B control plane over `Sandboxes`, for the generations of SDKs before and after `/v2`. */
export const plugin = definePlugin({
  name: "sandbox-api",
  reasons: REASONS,
  config: sandboxApiConfig,
  requires: {
    sandboxes: Sandboxes,
    snapshots: Snapshots,
    templates: Templates,
    volumes: Volumes,
    backends: Backends,
    clock: Clock,
    listeners: Listeners,
    greeting: Greeting,
    peers: Peers,
  },
  setup(context, { sandboxes, snapshots, templates, volumes, backends, clock, listeners, greeting, peers }) {
    const { config } = context;
    const router = context.http("api", { errors: "e2b" });
    const domain = (): string | undefined => publicDomain(config.domain, listeners.all());
    const history = new MetricsHistory({
      sandboxes,
      clock,
      log: context.log,
      intervalMs: config.metricsInterval,
      kept: Math.max(Math.ceil(config.metricsKept / config.metricsInterval), 1),
    });
    const services: ApiServices = {
      config,
      clock,
      backends,
      templates,
      capacities: new Capacities(),
      history,
      domain,
      sandboxes: (carrier) => sandboxesOf(carrier, sandboxes),
      everySandbox: (carrier) => {
        requireOperator(carrier);
        return sandboxes.list();
      },
      snapshots: (carrier) => snapshots.of(tenantOf(carrier)),
      peers,
    };
    context.onStart(() => history.start());
    context.onStop(() => history.stop());

    greeting.addVariables(() => sdkEnvironment(listeners.all(), config.domain));

    router.get("/health", (ctx) => {
      ctx.body = "Health check successful";
    });
    mountCreation(router, services);
    mountStateChanges(router, context.http("api"), services);
    mountReads(router, services);
    mountSnapshots(router, services);
    mountVolumes(router, { volumes, domain, maxBody: config.maxBody, peers });
    // Its clients present the volume's token where those of `api` have a key: it needs its own listener.
    context.guard("volumes", volumeGuard(volumes));
    mountVolumeContents(context.http("volumes", { errors: "e2b" }), { volumes, peers, ...config });
  },
});
