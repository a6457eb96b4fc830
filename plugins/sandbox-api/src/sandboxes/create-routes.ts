import {
  ClientCreations,
  type Clock,
  endUnlessClaimed,
  parseSandboxId,
  readJsonBody,
  type RequestCarrier,
  requestOf,
  type Router,
  type Sandboxes,
  type TenantSnapshots,
} from "@coppice/core";
import { createBody, toCreateSandbox } from "../bodies/create-body.js";
import { sandboxBody } from "../bodies/sandbox-body.js";
import type { SandboxApiConfig } from "../sandbox-api-config.js";
import { isSecureUnlessSaid } from "../bodies/secure-by-default.js";
import { forkBody, forkedBody, forkSandbox } from "./fork.js";

export interface CreateRoutesOptions {
  readonly config: SandboxApiConfig;
  readonly clock: Clock;
  readonly domain: () => string | undefined;
  readonly sandboxes: (carrier: RequestCarrier) => Sandboxes;
  readonly snapshots: (carrier: RequestCarrier) => TenantSnapshots;
}

/** Routes that make sandboxes: from a template, or as forks of another one. */
export function mountCreation(
  router: Router,
  { config, clock, domain, sandboxes, snapshots }: CreateRoutesOptions,
): void {
  const { legacyDefaultTimeout, maxBody, maxForks } = config;
  const { idempotencyKept, maxIdempotencyKeys } = config;
  const bodyOptions = { limitBytes: maxBody };
  const optionalBody = { ...bodyOptions, empty: {} };
  const createSchema = createBody({
    variableLimitBytes: config.maxVariable,
    networkRuleLimit: config.maxNetworkRules,
    volumeMountLimit: config.maxVolumeMounts,
  });
  const creations = new ClientCreations({ clock, keptMs: idempotencyKept, most: maxIdempotencyKeys });

  router.post("/sandboxes", async (ctx) => {
    const body = await readJsonBody(ctx.req, createSchema, bodyOptions);
    const secureUnlessSaid = isSecureUnlessSaid(ctx.req.headers, config.secureByDefault);
    const wanted = toCreateSandbox(body, { timeoutMs: legacyDefaultTimeout, secureUnlessSaid });
    const sandbox = await creations.create(ctx, { own: sandboxes(ctx), wanted });
    ctx.status = 201;
    ctx.body = sandboxBody(sandbox, domain());
  });

  router.post("/v2/sandboxes", async (ctx) => {
    const body = await readJsonBody(ctx.req, createSchema, bodyOptions);
    const wanted = toCreateSandbox(body, { timeoutMs: sandboxes(ctx).defaultTimeoutMs, secure: true });
    const sandbox = await creations.create(ctx, { own: sandboxes(ctx), wanted });
    ctx.status = 201;
    ctx.body = sandboxBody(sandbox, domain());
  });

  router.post("/sandboxes/:id/fork", async (ctx) => {
    const id = parseSandboxId(ctx.params["id"]);
    sandboxes(ctx).get(id);
    const body = await readJsonBody(ctx.req, forkBody, optionalBody);
    const forked = await forkSandbox(snapshots(ctx), id, {
      body,
      defaultTimeoutMs: legacyDefaultTimeout,
      most: maxForks,
      signal: requestOf(ctx).signal,
    });
    const made = forked.flatMap((one) => ("sandbox" in one ? [one.sandbox] : []));
    endUnlessClaimed(sandboxes(ctx), made, { request: requestOf(ctx), response: ctx.res });
    ctx.body = forked.map((one) => forkedBody(one, { domain: domain(), log: requestOf(ctx).log }));
    ctx.status = 201;
  });
}
