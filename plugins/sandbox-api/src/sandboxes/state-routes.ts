import {
  type Capacities,
  parseSandboxId,
  readJsonBody,
  type RequestCarrier,
  type Router,
  type Sandboxes,
} from "@coppice/core";
import { networkBody, toNetworkPolicy } from "../bodies/network-policy.js";
import { limitsBody, sandboxBody } from "../bodies/sandbox-body.js";
import type { SandboxApiConfig } from "../sandbox-api-config.js";
import { connectBody, connectSandbox } from "./connect.js";
import { pauseBody } from "./pause.js";
import { refreshBody, refreshSandbox } from "./refresh.js";
import { resumeBody, resumeSandbox } from "./resume.js";
import { setLimitsBody, setSandboxLimits } from "./set-limits.js";
import { setSandboxTimeout, setTimeoutBody } from "./set-timeout.js";

export interface StateRoutesOptions {
  readonly config: SandboxApiConfig;
  readonly domain: () => string | undefined;
  readonly capacities: Capacities;
  readonly sandboxes: (carrier: RequestCarrier) => Sandboxes;
}

/** Routes that change a sandbox, or end it. */
export function mountStateChanges(
  router: Router,
  { config, domain, sandboxes }: Omit<StateRoutesOptions, "capacities">,
): void {
  const { legacyDefaultTimeout, maxBody, maxNetworkRules } = config;
  const bodyOptions = { limitBytes: maxBody };
  const optionalBody = { ...bodyOptions, empty: {} };
  const networkSchema = networkBody({ networkRuleLimit: maxNetworkRules });

  router.post("/sandboxes/:id/connect", async (ctx) => {
    const id = parseSandboxId(ctx.params["id"]);
    const body = await readJsonBody(ctx.req, connectBody, optionalBody);
    const { sandbox, wasPaused } = await connectSandbox(sandboxes(ctx), id, { body });
    ctx.status = wasPaused ? 201 : 200;
    ctx.body = sandboxBody(sandbox, domain());
  });

  router.post("/v2/sandboxes/:id/connect", async (ctx) => {
    const id = parseSandboxId(ctx.params["id"]);
    const body = await readJsonBody(ctx.req, connectBody, optionalBody);
    const { defaultTimeoutMs } = sandboxes(ctx);
    const { sandbox, wasPaused } = await connectSandbox(sandboxes(ctx), id, { body, defaultTimeoutMs });
    ctx.status = wasPaused ? 201 : 200;
    ctx.body = sandboxBody(sandbox, domain());
  });

  router.post("/sandboxes/:id/pause", async (ctx) => {
    const id = parseSandboxId(ctx.params["id"]);
    const { memory } = await readJsonBody(ctx.req, pauseBody, optionalBody);
    await sandboxes(ctx).pause(id, { keepsMemory: memory ?? true });
    ctx.status = 204;
  });

  router.post("/sandboxes/:id/resume", async (ctx) => {
    const id = parseSandboxId(ctx.params["id"]);
    const body = await readJsonBody(ctx.req, resumeBody, optionalBody);
    const sandbox = await resumeSandbox(sandboxes(ctx), id, { body, defaultTimeoutMs: legacyDefaultTimeout });
    ctx.status = 201;
    ctx.body = sandboxBody(sandbox, domain());
  });

  router.delete("/sandboxes/:id", async (ctx) => {
    await sandboxes(ctx).kill(parseSandboxId(ctx.params["id"]));
    ctx.status = 204;
  });

  router.post("/sandboxes/:id/timeout", async (ctx) => {
    const id = parseSandboxId(ctx.params["id"]);
    await setSandboxTimeout(sandboxes(ctx), id, await readJsonBody(ctx.req, setTimeoutBody, bodyOptions));
    ctx.status = 204;
  });

  router.post("/sandboxes/:id/refreshes", async (ctx) => {
    const id = parseSandboxId(ctx.params["id"]);
    const body = await readJsonBody(ctx.req, refreshBody, optionalBody);
    await refreshSandbox(sandboxes(ctx), id, { body, leastMs: legacyDefaultTimeout });
    ctx.status = 204;
  });

  router.put("/sandboxes/:id/network", async (ctx) => {
    const id = parseSandboxId(ctx.params["id"]);
    const body = await readJsonBody(ctx.req, networkSchema, bodyOptions);
    await sandboxes(ctx).setNetworkPolicy(id, toNetworkPolicy(body));
    ctx.status = 204;
  });
}

/** The route that changes the limits of a sandbox, which is not part of E2B. */
export function mountLimits(
  router: Router,
  { config, capacities, sandboxes }: Omit<StateRoutesOptions, "domain">,
): void {
  const bodyOptions = { limitBytes: config.maxBody };

  router.patch("/sandboxes/:id/limits", async (ctx) => {
    const id = parseSandboxId(ctx.params["id"]);
    await setSandboxLimits(sandboxes(ctx), id, await readJsonBody(ctx.req, setLimitsBody, bodyOptions));
    ctx.body = limitsBody(id, await capacities.of(sandboxes(ctx).get(id)));
  });
}
