import {
  parseInput,
  queryNumber,
  readJsonBody,
  requestOf,
  requireScope,
  type Router,
  SandboxError,
  tenantOf,
} from "@coppice/core";
import { z } from "zod";
import { type BuildRecord, LOG_LEVELS } from "../model/build-record.js";
import { type ApiServices, buildingBackend, type Context, isBuildId, ownBuild } from "./api-services.js";
import { limitsOf, logEntryBody, requestBody, startBody, statusBody } from "./build-bodies.js";
import { REASONS } from "../reasons.js";

const MAX_ENTRIES = 100;
/** Of the step that failed, in the reason of a failure. */
const REASON_ENTRIES = 10;

const level = z.enum(LOG_LEVELS).default("debug");
const limit = queryNumber("a number of entries", 9)
  .transform((count) => Math.min(count, MAX_ENTRIES))
  .default(MAX_ENTRIES);

const statusQuery = z.object({ logsOffset: queryNumber("a number of entries", 9).default(0), limit, level });

const logsQuery = z.object({
  /** Start of a forward page, end of a backward page. */
  cursor: queryNumber("unix milliseconds").optional(),
  limit,
  direction: z.enum(["forward", "backward"]).default("forward"),
  level,
  // All entries are in one place.
  source: z.enum(["temporary", "persistent"]).optional(),
});

/** Routes by which E2B's clients build templates. */
export function mountBuilds(router: Router, services: ApiServices): void {
  const { config, requests, store, queue, peers } = services;
  const start = startBody(config.maxSteps);

  router.post("/v3/templates", async (ctx) => {
    const backend = buildingBackend(services);
    const body = await readJsonBody(ctx.req, requestBody, { limitBytes: config.maxBody });
    const name = body.name || body.alias;
    if (!name) throw new SandboxError(REASONS.template_build_invalid, "Name is required");
    // A template is built where its earlier builds are.
    await peers.requireMaker(ctx, { kind: "template", reference: name });
    const limits = limitsOf(body, { config, backend });
    const tenant = tenantOf(ctx);
    const { template, buildId, tags } = requests.request({
      tenant,
      name,
      tags: body.tags ?? [],
      limits,
      backend: backend.name,
    });
    const { id, isPublic, namespace, alias } = template;
    ctx.body = {
      templateID: id,
      buildID: buildId,
      public: isPublic,
      names: [`${namespace}/${alias}`],
      aliases: [alias],
      tags,
    };
    ctx.status = 202;
  });

  router.post("/v2/templates/:id/builds/:build", async (ctx) => {
    const text = ctx.params["build"] ?? "";
    if (!isBuildId(text))
      throw new SandboxError(REASONS.template_build_invalid, `Invalid build ID: ${text.slice(0, 100)}`);
    const { template, build } = ownBuild(ctx, services);
    if (build === undefined) {
      const refused = `template '${ctx.params["id"]}' has no build '${text}'`;
      throw new SandboxError("template_not_found", refused);
    }
    const wanted = await readJsonBody(ctx.req, start, { limitBytes: config.maxBody });
    // mmdebstrap works on this host, where no limit of a tenant holds.
    if (wanted.base.kind === "debian") requireScope(ctx, "admin");
    expireWaiting(services);
    queue.start({
      templateId: template.id,
      buildId: build.id,
      tenant: template.owner,
      backend: build.backend,
      limits: build.limits,
      ...wanted,
    });
    ctx.status = 202;
    ctx.body = "";
  });

  router.get("/templates/:id/builds/:build/status", (ctx) => {
    const { logsOffset, limit: most, level: least } = parseInput(statusQuery, query(ctx));
    const build = known(ctx, services);
    const { logs } = store();
    const entries = logs.list(build.id, { level: least, limit: most, offset: logsOffset });
    const step = build.reason?.step;
    const failed = step === undefined ? [] : logs.ofStep(build.id, step, REASON_ENTRIES);
    ctx.body = statusBody(build, { entries, failed, transfer: queue.transferOf(build.id) });
  });

  // Of coppice template build: E2B's clients leave their builds running.
  router.post("/templates/:id/builds/:build/cancel", (ctx) => {
    queue.cancel(known(ctx, services));
    ctx.status = 204;
  });

  router.get("/templates/:id/builds/:build/logs", (ctx) => {
    const { cursor, limit: most, direction, level: least } = parseInput(logsQuery, query(ctx));
    const build = known(ctx, services);
    const page = { level: least, limit: most };
    const { logs } = store();
    const entries =
      direction === "forward"
        ? logs.since(build.id, cursor ?? 0, page)
        : logs.before(build.id, cursor ?? Number.MAX_SAFE_INTEGER, page);
    ctx.body = { logs: entries.map(logEntryBody) };
  });
}

/** The build of a path, as it is now, with all of its log. @throws SandboxError build_not_found */
function known(ctx: Context, services: ApiServices): BuildRecord {
  const text = ctx.params["build"] ?? "";
  if (!isBuildId(text)) throw new SandboxError(REASONS.template_build_invalid, "Invalid build id");
  services.queue.flush(text.toLowerCase());
  const { build } = ownBuild(ctx, services);
  if (build?.state === "waiting") {
    expireWaiting(services);
    return services.store().builds.get({ id: build.id }) ?? build;
  }
  if (build !== undefined) return build;
  throw new SandboxError(REASONS.build_not_found, `Build '${text}' not found`);
}

function expireWaiting({ store, clock, config }: ApiServices): void {
  const nowMs = clock.now();
  store().builds.failWaiting(nowMs - config.waitingTimeout, nowMs);
}

function query(ctx: Context): Readonly<Record<string, string>> {
  return Object.fromEntries(requestOf(ctx).url.searchParams);
}
