import {
  parseTemplateReference,
  readJsonBody,
  type Router,
  SandboxError,
  type TemplateReference,
  tenantOf,
} from "@coppice/core";
import { z } from "zod";
import { parseTag, requireUnconfigured } from "../catalog/build-requests.js";
import type { ApiServices } from "./api-services.js";

const MAX_NAME = 1000;
const MAX_TAGS = 1000;

const tags = z.array(z.string().max(MAX_NAME)).max(MAX_TAGS);
const assignBody = z.object({ target: z.string().max(MAX_NAME), tags });
const removeBody = z.object({ name: z.string().max(MAX_NAME), tags });

/** Routes that change the tags of templates. */
export function mountTags(router: Router, services: ApiServices): void {
  const { config, clock, catalog, requests, store, templates } = services;

  router.post("/templates/tags", async (ctx) => {
    const body = await readJsonBody(ctx.req, assignBody, { limitBytes: config.maxBody });
    const { name, tag } = parseTarget(body.target);
    requireTags(body.tags);
    const wanted = [...new Set(body.tags.map(parseTag))];
    requireUnconfigured(name, templates);
    const template = catalog.own(name, tenantOf(ctx));
    const build = catalog.tagged(template, tag);
    if (build === undefined) {
      const text = `Template '${name}' with tag '${tag}' not found`;
      throw new SandboxError("template_tag_not_found", text);
    }
    requests.requireRoomForTags(template.id, wanted);
    store().atOnce(() => {
      for (const one of wanted) store().tags.assign(template.id, one, build.id, clock.now());
    });
    ctx.body = { buildID: build.id, tags: wanted };
    ctx.status = 201;
  });

  router.delete("/templates/tags", async (ctx) => {
    const body = await readJsonBody(ctx.req, removeBody, { limitBytes: config.maxBody });
    const { name } = parseTarget(body.name);
    requireTags(body.tags);
    const unwanted = body.tags.map(parseTag);
    if (unwanted.includes("default"))
      throw new SandboxError("template_build_invalid", "Cannot delete the 'default' tag");
    requireUnconfigured(name, templates);
    store().tags.remove(catalog.own(name, tenantOf(ctx)).id, unwanted);
    ctx.status = 204;
  });
}

function requireTags(given: readonly string[]): void {
  if (given.length === 0) throw new SandboxError("template_build_invalid", "At least one tag is required");
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
