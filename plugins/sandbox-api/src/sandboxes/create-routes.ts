import {
  ClientCreations,
  endUnlessClaimed,
  parseSandboxId,
  readJsonBody,
  requestOf,
  type Router,
  SandboxError,
  toHttpError,
} from "@coppice/core";
import { z } from "zod";
import { createBody, type CreateDefaults, toCreateSandbox } from "../bodies/create-body.js";
import { readinessFields, requestedProbe } from "../bodies/readiness-probe.js";
import { LEGACY_TIMEOUT_MS, requestedTimeoutMs, timeoutFields } from "../bodies/requested-limits.js";
import { sandboxBody } from "../bodies/sandbox-body.js";
import { isSecureUnlessSaid } from "../sandbox-api-config.js";
import type { ApiServices, Context } from "./api-services.js";

const forkBody = z.object({ ...timeoutFields, ...readinessFields, count: z.int32().nullish() });

/** Routes that make sandboxes: from a template, or as forks of another one. */
export function mountCreation(
  router: Router,
  { config, clock, domain, sandboxes, snapshots, templates }: ApiServices,
): void {
  const { maxBody, maxForks } = config;
  const { idempotencyKept, maxIdempotencyKeys } = config;
  const createSchema = createBody({
    variableLimitBytes: config.maxVariable,
    metadataLimitBytes: config.maxMetadata,
    networkRuleLimit: config.maxNetworkRules,
    volumeMountLimit: config.maxVolumeMounts,
  });
  const creations = new ClientCreations({ clock, keptMs: idempotencyKept, most: maxIdempotencyKeys });
  const create = async (ctx: Context, defaults: CreateDefaults): Promise<void> => {
    const body = await readJsonBody(ctx.req, createSchema, { limitBytes: maxBody });
    const wanted = toCreateSandbox(body, defaults);
    const sandbox = await creations.create(ctx, { own: sandboxes(ctx), wanted });
    const { template, build, snapshot } = sandbox.record;
    if (build === undefined && snapshot === undefined && templates.isBuilt(template)) {
      const notice = `template '${template}' is not built yet: this sandbox has what the server has by that name`;
      ctx.set("Coppice-Notice", notice);
    }
    ctx.status = 201;
    ctx.body = sandboxBody(sandbox, { carrier: ctx, domain: domain() });
  };

  router.post("/sandboxes", (ctx) => {
    const secureUnlessSaid = isSecureUnlessSaid(ctx.req.headers, config.secureByDefault);
    return create(ctx, { timeoutMs: LEGACY_TIMEOUT_MS, secureUnlessSaid });
  });

  router.post("/v2/sandboxes", (ctx) =>
    create(ctx, { timeoutMs: sandboxes(ctx).defaultTimeoutMs, secure: true }),
  );

  router.post("/sandboxes/:id/fork", async (ctx) => {
    const id = parseSandboxId(ctx.params["id"]);
    const request = requestOf(ctx);
    sandboxes(ctx).get(id);
    const body = await readJsonBody(ctx.req, forkBody, { limitBytes: maxBody, empty: {} });
    const count = body.count ?? 1;
    if (count < 1) throw new SandboxError("request_invalid", "Count must be at least 1");
    if (count > maxForks)
      throw new SandboxError("request_invalid", `Count cannot be greater than ${maxForks}`);
    const timeoutMs = requestedTimeoutMs(body) ?? LEGACY_TIMEOUT_MS;
    const wanted = { count, timeoutMs, readinessProbe: requestedProbe(body) };
    const forked = await snapshots(ctx).fork(id, wanted, request.signal);
    const made = forked.flatMap((one) => ("sandbox" in one ? [one.sandbox] : []));
    endUnlessClaimed(sandboxes(ctx), made, { request, response: ctx.res });
    ctx.body = forked.map((one) => {
      if ("sandbox" in one) return { sandbox: sandboxBody(one.sandbox, { carrier: ctx, domain: domain() }) };
      const { status, message } = toHttpError(one.error, request.log);
      return { error: { code: status, message } };
    });
    ctx.status = 201;
  });
}
