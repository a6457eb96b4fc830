import { parseTemplateReference, readJsonBody, type Router, SandboxError, tenantOf } from "@coppice/core";
import { z } from "zod";
import { requireUnconfigured } from "../catalog/build-requests.js";
import { assignTags, parseRemovedTags, parseTags } from "../catalog/template-tags.js";
import type { ApiServices } from "./api-services.js";
import type { TemplateReference } from "../model/template-record.js";

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
