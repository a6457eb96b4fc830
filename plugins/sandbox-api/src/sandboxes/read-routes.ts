import {
  type Capacities,
  type Backends,
  type LiveSandbox,
  parseSandboxId,
  type RequestCarrier,
  requestOf,
  type Router,
  type Sandboxes,
  type Templates,
  type TenantSnapshots,
} from "@coppice/core";
import type { MetricsHistory } from "../bodies/metrics-history.js";
import { listedSandboxBody, metricBody, sandboxDetailBody } from "../bodies/sandbox-body.js";
import { templateIdOf } from "../bodies/template-id-of.js";
import { listSandboxes, parseLegacyListQuery, parseListQuery } from "./list.js";
import { parseMetricsWindow, parseSandboxIds, samplesWithin } from "./metrics.js";

export interface ReadRoutesOptions {
  readonly backends: Backends;
  readonly templates: Templates;
  readonly capacities: Capacities;
  readonly history: MetricsHistory;
  readonly domain: () => string | undefined;
  readonly sandboxes: (carrier: RequestCarrier) => Sandboxes;
  readonly snapshots: (carrier: RequestCarrier) => TenantSnapshots;
}

/** Routes that list and describe sandboxes. */
export function mountReads(
  router: Router,
  { backends, templates, capacities, history, domain, sandboxes, snapshots }: ReadRoutesOptions,
): void {
  router.get("/sandboxes", async (ctx) => {
    const page = listSandboxes(sandboxes(ctx).list(), parseLegacyListQuery(requestOf(ctx).url.searchParams));
    ctx.body = await listBody(page.sandboxes, capacities);
  });

  router.get("/v2/sandboxes", async (ctx) => {
    const query = parseListQuery(requestOf(ctx).url.searchParams);
    const template = query.template && templateIdOf(query.template, { templates, snapshots: snapshots(ctx) });
    const page = listSandboxes(sandboxes(ctx).list(), { ...query, template });
    if (page.nextToken !== undefined) ctx.set("X-Next-Token", page.nextToken);
    if (page.totalRunning !== undefined) ctx.set("X-Total-Running", String(page.totalRunning));
    ctx.body = await listBody(page.sandboxes, capacities);
  });

  // Before the route of one sandbox, which would take the word for an id.
  router.get("/sandboxes/metrics", async (ctx) => {
    const ids = parseSandboxIds(requestOf(ctx).url.searchParams);
    const found = [...ids].flatMap((id) => sandboxes(ctx).find(id) ?? []);
    const told = await Promise.all(
      found.map(async (sandbox) => {
        const latest = (await history.of(sandbox)).at(-1);
        return latest === undefined ? [] : [[sandbox.record.id, metricBody(latest)] as const];
      }),
    );
    ctx.body = { sandboxes: Object.fromEntries(told.flat()) };
  });

  router.get("/sandboxes/:id", async (ctx) => {
    const sandbox = sandboxes(ctx).get(parseSandboxId(ctx.params["id"]));
    const backend = backends.all().find(({ name }) => name === sandbox.record.backend);
    ctx.body = sandboxDetailBody(sandbox, {
      capacity: await capacities.of(sandbox),
      domain: domain(),
      isOffline: backend?.offline === true,
    });
  });

  router.get("/sandboxes/:id/metrics", async (ctx) => {
    const sandbox = sandboxes(ctx).get(parseSandboxId(ctx.params["id"]));
    const window = parseMetricsWindow(requestOf(ctx).url.searchParams);
    ctx.body = samplesWithin(await history.of(sandbox), window).map(metricBody);
  });
}

async function listBody(sandboxes: readonly LiveSandbox[], capacities: Capacities) {
  return Promise.all(
    sandboxes.map(async (sandbox) => listedSandboxBody(sandbox, await capacities.of(sandbox))),
  );
}
