import type { IncomingMessage, ServerResponse } from "node:http";
import {
  Backends,
  Clock,
  type CreateSandbox,
  definePlugin,
  Greeting,
  Listeners,
  type LiveSandbox,
  noteSandbox,
  readJsonBody,
  type RequestCarrier,
  requestOf,
  Sandboxes,
  Snapshots,
  Templates,
  tenantOf,
  type TenantSnapshots,
  sandboxesOf,
  Volumes,
  parseSandboxId,
} from "@coppice/core";
import { Capacities } from "./bodies/capacity.js";
import { connectBody, connectSandbox } from "./sandboxes/connect.js";
import { createBody, toCreateSandbox } from "./bodies/create-body.js";
import { createSandbox, endUnlessClaimed } from "./sandboxes/create.js";
import { forkBody, forkedBody, forkSandbox } from "./sandboxes/fork.js";
import { IdempotentCreations, parseIdempotencyKey } from "./sandboxes/idempotent-creations.js";
import { listSnapshots } from "./snapshots/list-snapshots.js";
import { listSandboxes, parseLegacyListQuery, parseListQuery } from "./sandboxes/list.js";
import { MetricsHistory } from "./bodies/metrics-history.js";
import { parseMetricsWindow, parseSandboxIds, samplesWithin } from "./sandboxes/metrics.js";
import { pauseBody } from "./sandboxes/pause.js";
import { networkBody, toNetworkPolicy } from "./bodies/network-policy.js";
import { publicDomain } from "./public-domain.js";
import { refreshBody, refreshSandbox } from "./sandboxes/refresh.js";
import { resumeBody, resumeSandbox } from "./sandboxes/resume.js";
import { SandboxApiConfig } from "./sandbox-api-config.js";
import {
  limitsBody,
  listedSandboxBody,
  metricBody,
  sandboxBody,
  sandboxDetailBody,
} from "./bodies/sandbox-body.js";
import { snapshotBody } from "./snapshots/snapshot-body.js";
import { takeSnapshotBody } from "./snapshots/take-snapshot.js";
import { templateIdOf } from "./bodies/template-id-of.js";
import { serveTemplates } from "./templates/template-routes.js";
import { sdkEnvironment } from "./sdk-environment.js";
import { isSecureUnlessSaid } from "./secure-by-default.js";
import { setLimitsBody, setSandboxLimits } from "./sandboxes/set-limits.js";
import { setSandboxTimeout, setTimeoutBody } from "./sandboxes/set-timeout.js";
import { serveVolumeContents, volumeGuard } from "./volumes/volume-content-routes.js";
import { serveVolumes } from "./volumes/volume-routes.js";

/** The parts of koa's context that a creation uses. */
type CreationContext = Extract<RequestCarrier, { readonly state: unknown }> & {
  readonly req: IncomingMessage;
  readonly res: ServerResponse;
};

/** The E2B control plane over `Sandboxes`, for the generations of SDKs before and after `/v2`. */
export const plugin = definePlugin({
  name: "sandbox-api",
  config: SandboxApiConfig,
  requires: {
    sandboxes: Sandboxes,
    snapshots: Snapshots,
    templates: Templates,
    volumes: Volumes,
    backends: Backends,
    clock: Clock,
    listeners: Listeners,
    greeting: Greeting,
  },
  setup(context, { sandboxes, snapshots, templates, volumes, backends, clock, listeners, greeting }) {
    const { legacyDefaultTimeout, maxBody, maxForks, maxNetworkRules, maxVariable } = context.config;
    const { idempotencyKept, maxIdempotencyKeys, metricsInterval, metricsKept } = context.config;
    const router = context.http("api", { errors: "e2b" });
    const domain = (): string | undefined => publicDomain(context.config.domain, listeners.all());
    const capacities = new Capacities();
    const bodyOptions = { limitBytes: maxBody };
    const optionalBody = { ...bodyOptions, empty: {} };
    const own = (carrier: RequestCarrier): Sandboxes => sandboxesOf(carrier, sandboxes);
    const createSchema = createBody({
      variableLimitBytes: maxVariable,
      networkRuleLimit: maxNetworkRules,
      volumeMountLimit: context.config.maxVolumeMounts,
    });
    const networkSchema = networkBody({ networkRuleLimit: maxNetworkRules });
    const ownSnapshots = (carrier: RequestCarrier): TenantSnapshots => snapshots.of(tenantOf(carrier));

    const history = new MetricsHistory({
      sandboxes,
      clock,
      log: context.log,
      intervalMs: metricsInterval,
      kept: Math.max(Math.ceil(metricsKept / metricsInterval), 1),
    });
    context.onStart(() => history.start());
    context.onStop(() => history.stop());

    const creations = new IdempotentCreations({ clock, keptMs: idempotencyKept, most: maxIdempotencyKeys });
    const createFor = async (ctx: CreationContext, wanted: CreateSandbox): Promise<LiveSandbox> => {
      const key = parseIdempotencyKey(ctx.req.headers["idempotency-key"]);
      const sandbox =
        key === undefined
          ? await createSandbox(own(ctx), wanted, { request: requestOf(ctx), response: ctx.res })
          : await creations.create(own(ctx), { tenant: tenantOf(ctx), key, wanted });
      noteSandbox(ctx, sandbox.record.id);
      return sandbox;
    };

    greeting.addVariables(() => sdkEnvironment(listeners.all(), context.config.domain));

    router.get("/health", (ctx) => {
      ctx.body = "Health check successful";
    });

    router.post("/sandboxes", async (ctx) => {
      const body = await readJsonBody(ctx.req, createSchema, bodyOptions);
      const secureUnlessSaid = isSecureUnlessSaid(ctx.req.headers, context.config.secureByDefault);
      const wanted = toCreateSandbox(body, { timeoutMs: legacyDefaultTimeout, secureUnlessSaid });
      const sandbox = await createFor(ctx, wanted);
      ctx.status = 201;
      ctx.body = sandboxBody(sandbox, domain());
    });

    router.post("/v2/sandboxes", async (ctx) => {
      const body = await readJsonBody(ctx.req, createSchema, bodyOptions);
      const wanted = toCreateSandbox(body, { timeoutMs: sandboxes.defaultTimeoutMs, secure: true });
      const sandbox = await createFor(ctx, wanted);
      ctx.status = 201;
      ctx.body = sandboxBody(sandbox, domain());
    });

    router.post("/sandboxes/:id/connect", async (ctx) => {
      const id = parseSandboxId(ctx.params["id"]);
      const body = await readJsonBody(ctx.req, connectBody, optionalBody);
      const { sandbox, wasPaused } = await connectSandbox(own(ctx), id, { body });
      ctx.status = wasPaused ? 201 : 200;
      ctx.body = sandboxBody(sandbox, domain());
    });

    router.post("/v2/sandboxes/:id/connect", async (ctx) => {
      const id = parseSandboxId(ctx.params["id"]);
      const body = await readJsonBody(ctx.req, connectBody, optionalBody);
      const { defaultTimeoutMs } = sandboxes;
      const { sandbox, wasPaused } = await connectSandbox(own(ctx), id, { body, defaultTimeoutMs });
      ctx.status = wasPaused ? 201 : 200;
      ctx.body = sandboxBody(sandbox, domain());
    });

    router.post("/sandboxes/:id/pause", async (ctx) => {
      const id = parseSandboxId(ctx.params["id"]);
      const { memory } = await readJsonBody(ctx.req, pauseBody, optionalBody);
      await own(ctx).pause(id, { keepsMemory: memory ?? true });
      ctx.status = 204;
    });

    router.post("/sandboxes/:id/resume", async (ctx) => {
      const id = parseSandboxId(ctx.params["id"]);
      const body = await readJsonBody(ctx.req, resumeBody, optionalBody);
      const sandbox = await resumeSandbox(own(ctx), id, { body, defaultTimeoutMs: legacyDefaultTimeout });
      ctx.status = 201;
      ctx.body = sandboxBody(sandbox, domain());
    });

    router.post("/sandboxes/:id/snapshots", async (ctx) => {
      const id = parseSandboxId(ctx.params["id"]);
      own(ctx).get(id);
      const { name } = await readJsonBody(ctx.req, takeSnapshotBody, optionalBody);
      ctx.body = snapshotBody(await ownSnapshots(ctx).take(id, name ?? undefined));
      ctx.status = 201;
    });

    router.get("/snapshots", (ctx) => {
      const page = listSnapshots(ownSnapshots(ctx), requestOf(ctx).url.searchParams);
      if (page.nextToken !== undefined) ctx.set("X-Next-Token", page.nextToken);
      ctx.body = page.snapshots.map(snapshotBody);
    });

    serveTemplates(router, { templates, clock, sandboxes: own, snapshots: ownSnapshots });

    router.post("/sandboxes/:id/fork", async (ctx) => {
      const id = parseSandboxId(ctx.params["id"]);
      own(ctx).get(id);
      const body = await readJsonBody(ctx.req, forkBody, optionalBody);
      const forked = await forkSandbox(ownSnapshots(ctx), id, {
        body,
        defaultTimeoutMs: legacyDefaultTimeout,
        most: maxForks,
        signal: requestOf(ctx).signal,
      });
      const made = forked.flatMap((one) => ("sandbox" in one ? [one.sandbox] : []));
      endUnlessClaimed(own(ctx), made, { request: requestOf(ctx), response: ctx.res });
      ctx.body = forked.map((one) => forkedBody(one, { domain: domain(), log: requestOf(ctx).log }));
      ctx.status = 201;
    });

    serveVolumes(router, volumes, { domain, maxBody });
    // Its clients send the volume's token in place of an API key, hence a listener of its own.
    context.guard("volumes", volumeGuard(volumes));
    serveVolumeContents(context.http("volumes", { errors: "e2b" }), volumes, context.config);

    router.get("/sandboxes", async (ctx) => {
      const page = listSandboxes(own(ctx).list(), parseLegacyListQuery(requestOf(ctx).url.searchParams));
      ctx.body = await listBody(page.sandboxes, capacities);
    });

    router.get("/v2/sandboxes", async (ctx) => {
      const query = parseListQuery(requestOf(ctx).url.searchParams);
      const template =
        query.template && templateIdOf(query.template, { templates, snapshots: ownSnapshots(ctx) });
      const page = listSandboxes(own(ctx).list(), { ...query, template });
      if (page.nextToken !== undefined) ctx.set("X-Next-Token", page.nextToken);
      if (page.totalRunning !== undefined) ctx.set("X-Total-Running", String(page.totalRunning));
      ctx.body = await listBody(page.sandboxes, capacities);
    });

    // Before the route of one sandbox, which would take the word for an id.
    router.get("/sandboxes/metrics", async (ctx) => {
      const ids = parseSandboxIds(requestOf(ctx).url.searchParams);
      const found = [...ids].flatMap((id) => own(ctx).find(id) ?? []);
      const told = await Promise.all(
        found.map(async (sandbox) => {
          const latest = (await history.of(sandbox)).at(-1);
          return latest === undefined ? [] : [[sandbox.record.id, metricBody(latest)] as const];
        }),
      );
      ctx.body = { sandboxes: Object.fromEntries(told.flat()) };
    });

    router.get("/sandboxes/:id", async (ctx) => {
      const sandbox = own(ctx).get(parseSandboxId(ctx.params["id"]));
      const backend = backends.all().find(({ name }) => name === sandbox.record.backend);
      ctx.body = sandboxDetailBody(sandbox, {
        capacity: await capacities.of(sandbox),
        domain: domain(),
        isOffline: backend?.offline === true,
      });
    });

    router.delete("/sandboxes/:id", async (ctx) => {
      await own(ctx).kill(parseSandboxId(ctx.params["id"]));
      ctx.status = 204;
    });

    router.post("/sandboxes/:id/timeout", async (ctx) => {
      const id = parseSandboxId(ctx.params["id"]);
      await setSandboxTimeout(own(ctx), id, await readJsonBody(ctx.req, setTimeoutBody, bodyOptions));
      ctx.status = 204;
    });

    router.post("/sandboxes/:id/refreshes", async (ctx) => {
      const id = parseSandboxId(ctx.params["id"]);
      const body = await readJsonBody(ctx.req, refreshBody, optionalBody);
      await refreshSandbox(own(ctx), id, { body, leastMs: legacyDefaultTimeout });
      ctx.status = 204;
    });

    context.http("api").patch("/sandboxes/:id/limits", async (ctx) => {
      const id = parseSandboxId(ctx.params["id"]);
      await setSandboxLimits(own(ctx), id, await readJsonBody(ctx.req, setLimitsBody, bodyOptions));
      ctx.body = limitsBody(id, await capacities.of(own(ctx).get(id)));
    });

    router.put("/sandboxes/:id/network", async (ctx) => {
      const id = parseSandboxId(ctx.params["id"]);
      const body = await readJsonBody(ctx.req, networkSchema, bodyOptions);
      await own(ctx).setNetworkPolicy(id, toNetworkPolicy(body));
      ctx.status = 204;
    });

    router.get("/sandboxes/:id/metrics", async (ctx) => {
      const sandbox = own(ctx).get(parseSandboxId(ctx.params["id"]));
      const window = parseMetricsWindow(requestOf(ctx).url.searchParams);
      ctx.body = samplesWithin(await history.of(sandbox), window).map(metricBody);
    });
  },
});

async function listBody(sandboxes: readonly LiveSandbox[], capacities: Capacities) {
  return Promise.all(
    sandboxes.map(async (sandbox) => listedSandboxBody(sandbox, await capacities.of(sandbox))),
  );
}
