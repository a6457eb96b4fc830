import {
  firstPage,
  gatherAnswers,
  pageFields,
  parseInput,
  parseTemplateReference,
  readJsonBody,
  type RequestCarrier,
  requestOf,
  type Router,
  SandboxError,
  sandboxesOf,
  type SnapshotRecord,
  type TemplateFacts,
  tenantOf,
} from "@coppice/core";
import { z } from "zod";
import {
  assignTags,
  parseRemovedTags,
  parseTags,
  readOnly,
  requireUnconfigured,
} from "../catalog/build-requests.js";
import type { TemplateRecord, TemplateReference } from "../model/template-record.js";
import type { ApiServices, Context } from "./api-services.js";
import {
  builtBody,
  builtDetailBody,
  type BuiltTemplate,
  configuredBody,
  configuredDetailBody,
  configuredTagsBody,
  type ConfiguredTemplate,
  listedBy,
  type ListedTemplates,
  snapshotTagsBody,
  tagsBody,
  templatePage,
} from "./template-body.js";
import { REASONS } from "../reasons.js";

const MAX_NAME = 1000;
const MAX_TAGS = 1000;

const tags = z.array(z.string().max(MAX_NAME)).max(MAX_TAGS);
const assignBody = z.object({ target: z.string().max(MAX_NAME), tags });
const removeBody = z.object({ name: z.string().max(MAX_NAME), tags });

/** Routes that change the tags of templates. */
export function mountTags(router: Router, services: ApiServices): void {
  const { config, clock, catalog, store, templates, peers, sharing } = services;

  router.post("/templates/tags", async (ctx) => {
    const body = await readJsonBody(ctx.req, assignBody, { limitBytes: config.maxBody });
    const { name, tag } = parseTarget(body.target);
    const wanted = parseTags(body.tags);
    requireUnconfigured(name, templates);
    await peers.requireHere(ctx, { kind: "template", reference: name });
    const template = catalog.own(name, tenantOf(ctx));
    const limits = { maxTags: config.maxTags, nowMs: clock.now() };
    const buildId = assignTags(store(), { template, name, tag, tags: wanted }, limits);
    await sharing?.changed(template.id);
    sharing?.soon();
    ctx.body = { buildID: buildId, tags: wanted };
    ctx.status = 201;
  });

  router.delete("/templates/tags", async (ctx) => {
    const body = await readJsonBody(ctx.req, removeBody, { limitBytes: config.maxBody });
    const { name } = parseTarget(body.name);
    const unwanted = parseRemovedTags(body.tags);
    requireUnconfigured(name, templates);
    await peers.requireHere(ctx, { kind: "template", reference: name });
    const { id } = catalog.own(name, tenantOf(ctx));
    store().tags.remove({ templateId: id, name: unwanted });
    await sharing?.changed(id);
    ctx.status = 204;
  });
}

/** @throws SandboxError invalid_argument `Invalid target template format: …` */
function parseTarget(text: string): TemplateReference {
  try {
    return parseTemplateReference(text);
  } catch (error) {
    const refused = `Invalid target template format: ${text.slice(0, 100)}`;
    throw new SandboxError("template_reference_invalid", refused, { cause: error });
  }
}

const changeBody = z.object({ public: z.boolean().optional() });
const buildsQuery = z.object(pageFields);

/** Of one template, in any route; some words have routes of their own. */
const TEMPLATE = /^(?:\/v2)?\/templates\/(?!(?:tags|push)\/?$|uploads\/)(?:aliases\/(?=[^/]))?([^/]+)/;

/** What a reference stands for: snapshots come first, then the configuration, as in creations of sandboxes. */
type Found =
  | { readonly kind: "snapshot"; readonly snapshot: SnapshotRecord }
  | { readonly kind: "configured"; readonly template: TemplateFacts }
  | { readonly kind: "built"; readonly template: TemplateRecord };

/** Routes by which E2B's clients read, publish and delete templates; a snapshot counts as one. */
export function mountTemplates(router: Router, services: ApiServices): void {
  const { config, clock, templates, snapshots, catalog, store, queue, keeper, peers, sharing } = services;
  const servedSinceMs = clock.now();

  peers.hold({ kind: "template", surface: "api", inPath: (pathname) => TEMPLATE.exec(pathname)?.[1], has });

  router.get("/templates", async (ctx) => {
    const { configured, built } = all(ctx);
    ctx.body = [...configured, ...built, ...listedBy(await gatherAnswers(ctx, peers))];
  });

  router.get("/v2/templates", async (ctx) => {
    const answers = await gatherAnswers(ctx, peers);
    const page = templatePage(all(ctx), requestOf(ctx).url.searchParams, answers);
    if (page.nextToken !== undefined) ctx.set("X-Next-Token", page.nextToken);
    ctx.body = page.entries;
  });

  router.get("/templates/aliases/:alias", (ctx) => {
    const text = ctx.params["alias"] ?? "";
    const found = find(text, ctx);
    if (found.kind === "snapshot") ctx.body = { templateID: found.snapshot.id, public: false };
    else if (found.kind === "configured") ctx.body = { templateID: found.template.name, public: true };
    else {
      if (text.includes(":")) catalog.resolve(parseTemplateReference(text), tenantOf(ctx));
      ctx.body = { templateID: found.template.id, public: found.template.isPublic };
    }
  });

  router.get("/templates/:id", (ctx) => {
    const found = find(ctx.params["id"] ?? "", ctx);
    if (found.kind === "snapshot") throw notFound(ctx.params["id"] ?? "");
    if (found.kind === "configured") {
      ctx.body = configuredDetailBody(useOf(found.template, ctx));
      return;
    }
    requireOwner(found.template, ctx);
    const { limit, nextToken } = parseInput(buildsQuery, Object.fromEntries(requestOf(ctx).url.searchParams));
    const before = nextToken === "" ? Number.MAX_SAFE_INTEGER : Number(/^\d{1,15}$/.exec(nextToken)?.[0]);
    if (Number.isNaN(before)) throw new SandboxError("cursor_invalid", "Invalid next token");
    const builds = store().builds.list(found.template.id, { limit: limit + 1, before });
    const page = firstPage(builds, limit, ({ sequence }) => String(sequence));
    if (page.nextToken !== undefined) ctx.set("X-Next-Token", page.nextToken);
    ctx.body = builtDetailBody(builtOf(found.template), page.entries);
  });

  router.get("/templates/:id/tags", (ctx) => {
    const found = find(ctx.params["id"] ?? "", ctx);
    if (found.kind === "snapshot") ctx.body = snapshotTagsBody(found.snapshot);
    else if (found.kind === "configured") ctx.body = configuredTagsBody(found.template, servedSinceMs);
    else {
      requireOwner(found.template, ctx);
      ctx.body = tagsBody(store().tags.list(found.template.id));
    }
  });

  router.patch("/v2/templates/:id", async (ctx) => {
    const { namespace, alias } = await change(ctx);
    ctx.body = { names: [`${namespace}/${alias}`] };
  });

  router.patch("/templates/:id", async (ctx) => {
    await change(ctx);
    // Of JSON, a body of null is not empty.
    ctx.status = 200;
    ctx.type = "json";
    ctx.body = null;
  });

  router.delete("/templates/:id", async (ctx) => {
    const reference = ctx.params["id"] ?? "";
    const found = find(reference, ctx);
    if (found.kind === "snapshot") await snapshots.of(tenantOf(ctx)).remove(found.snapshot.id);
    else {
      const template = ownOf(found, reference, ctx);
      // A snapshot that is gone, most likely; a tag has its own route.
      if (reference.includes(":")) throw notFound(reference);
      requireUnused(template);
      await sharing?.removed(template.id);
      for (const build of store().builds.unfinished(template.id)) queue.cancel(build);
      store().templates.remove({ id: template.id });
      await keeper.sweep();
    }
    ctx.status = 204;
  });

  function has(reference: string, tenant: string): boolean {
    try {
      findFor(reference, tenant);
      return true;
    } catch (error) {
      return !(error instanceof SandboxError) || error.reason !== "template_not_found";
    }
  }

  function find(text: string, carrier: RequestCarrier): Found {
    return findFor(text, tenantOf(carrier));
  }

  function findFor(text: string, tenant: string): Found {
    const snapshot = snapshots.of(tenant).find(text);
    if (snapshot !== undefined) return { kind: "snapshot", snapshot };
    const { name } = parseTemplateReference(text);
    if (templates.all().some((one) => one.name === name || one.aliases.includes(name)))
      return { kind: "configured", template: templates.find(text) };
    const template = catalog.find(name, tenant);
    if (template === undefined) throw notFound(name);
    return { kind: "built", template };
  }

  function all(carrier: RequestCarrier): ListedTemplates {
    // The server that asks has the same configuration.
    const configured = requestOf(carrier).isPassedOn ? [] : templates.all();
    const built = store().templates.list({ owner: tenantOf(carrier) });
    return {
      configured: configured.map((template) => configuredBody(useOf(template, carrier))),
      built: built.map((template) => builtBody(builtOf(template))),
    };
  }

  function useOf(template: TemplateFacts, carrier: RequestCarrier): ConfiguredTemplate {
    const sandboxes = sandboxesOf(carrier, services.sandboxes)
      .list()
      .filter(({ record }) => record.template === template.name && record.snapshot === undefined);
    const built = templates.isBuilt(template.name) ? store().templates.get({ id: template.name }) : undefined;
    return { template, recipe: built && builtOf(built), sandboxes, servedSinceMs };
  }

  function builtOf(template: TemplateRecord): BuiltTemplate {
    const { builds } = store();
    const newest = builds.newest(template.id, "default") ?? builds.list(template.id, { limit: 1 })[0];
    const current = builds.tagged(template.id, "default");
    const backend = services.backends.all().find(({ name }) => name === (current ?? newest)?.backend);
    return {
      template,
      buildCount: builds.count({ templateId: template.id }),
      newest,
      current,
      defaultLimits: backend?.defaultLimits,
    };
  }

  async function change(ctx: Context): Promise<TemplateRecord> {
    const { public: isPublic } = await readJsonBody(ctx.req, changeBody, {
      limitBytes: config.maxBody,
      empty: {},
    });
    const reference = ctx.params["id"] ?? "";
    const template = ownOf(find(reference, ctx), reference, ctx);
    if (isPublic !== undefined) {
      store().templates.update({ id: template.id }, { isPublic, updatedAtMs: clock.now() });
      await sharing?.changed(template.id);
    }
    return template;
  }

  /** @throws SandboxError for what a client cannot change */
  function ownOf(found: Found, reference: string, carrier: RequestCarrier): TemplateRecord {
    if (found.kind === "configured") throw readOnly(found.template.name);
    if (found.kind === "snapshot") throw notFound(reference);
    requireOwner(found.template, carrier);
    return found.template;
  }

  function requireUnused({ id, alias }: TemplateRecord): void {
    const users = services.sandboxes.list().filter(({ record }) => record.template === id);
    if (users.length === 0) return;
    const state = users.every(({ record }) => record.state === "paused") ? "paused" : "running";
    const text = `cannot delete template '${alias}' because there are ${state} sandboxes using it`;
    throw new SandboxError(REASONS.template_in_use, text);
  }
}

function requireOwner({ owner }: TemplateRecord, carrier: RequestCarrier): void {
  if (owner !== tenantOf(carrier))
    throw new SandboxError(REASONS.template_not_owned, "User does not have access to the template");
}

function notFound(name: string): SandboxError {
  return new SandboxError("template_not_found", `template '${name}' not found`);
}
