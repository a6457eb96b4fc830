import {
  parseInput,
  requestOf,
  type RequestCarrier,
  type Router,
  SandboxError,
  type SnapshotRecord,
  type TemplateFacts,
} from "@coppice/core";
import { z } from "zod";
import type { ApiServices } from "../sandboxes/api-services.js";
import { firstPage, type Page, pageFields } from "../sandboxes/page.js";
import { tagsBody, templateBody, templateDetailBody, type TemplateUse } from "./template-body.js";

/** Changes that E2B's clients may ask for and this server refuses. */
const REFUSED = [
  ["post", "/templates", "build templates"],
  ["post", "/v2/templates", "build templates"],
  ["post", "/v3/templates", "build templates"],
  ["patch", "/templates/:id", "change templates"],
  ["patch", "/v2/templates/:id", "change templates"],
  ["post", "/templates/tags", "tag templates"],
  ["delete", "/templates/tags", "tag templates"],
] as const;

const listQuery = z.object(pageFields);

/** Routes by which E2B's clients read templates; a snapshot counts as one. */
export function mountTemplates(
  router: Router,
  { templates, clock, sandboxes, snapshots }: ApiServices,
): void {
  const servedSinceMs = clock.now();
  const useOf = (template: TemplateFacts, carrier: RequestCarrier): TemplateUse => ({
    template,
    sandboxes: sandboxes(carrier)
      .list()
      .filter(({ record }) => record.template === template.name && record.snapshot === undefined),
    servedSinceMs,
  });
  const find = (reference: string, carrier: RequestCarrier): TemplateFacts | SnapshotRecord =>
    snapshots(carrier).find(reference) ?? templates.find(reference);

  router.get("/templates", (ctx) => {
    ctx.body = templates.all().map((template) => templateBody(useOf(template, ctx)));
  });

  router.get("/v2/templates", (ctx) => {
    const page = listTemplates(templates.all(), requestOf(ctx).url.searchParams);
    if (page.nextToken !== undefined) ctx.set("X-Next-Token", page.nextToken);
    ctx.body = page.entries.map((template) => templateBody(useOf(template, ctx)));
  });

  router.get("/templates/aliases/:alias", (ctx) => {
    const found = find(ctx.params["alias"] ?? "", ctx);
    ctx.body =
      "takenAtMs" in found
        ? { templateID: found.id, public: false }
        : { templateID: found.name, public: true };
  });

  router.get("/templates/:id", (ctx) => {
    ctx.body = templateDetailBody(useOf(templates.find(ctx.params["id"] ?? ""), ctx));
  });

  router.get("/templates/:id/tags", (ctx) => {
    const found = find(ctx.params["id"] ?? "", ctx);
    // The tag of a snapshot is the one that its name ends with.
    ctx.body =
      "takenAtMs" in found
        ? tagsBody(found.id, found.name?.split(":")[1] ?? "default", found.takenAtMs)
        : tagsBody(found.name, "default", servedSinceMs);
  });

  // Before the routes of one template, which would take a word for an id.
  for (const [method, path, what] of REFUSED) {
    router[method](path, () => {
      throw refused(what);
    });
  }

  router.delete("/templates/:id", async (ctx) => {
    const found = find(ctx.params["id"] ?? "", ctx);
    if (!("takenAtMs" in found)) throw refused("delete templates");
    await snapshots(ctx).remove(found.id);
    ctx.status = 204;
  });
}

/** The page of `GET /v2/templates` that a query asks for. @throws SandboxError invalid_argument */
function listTemplates(all: readonly TemplateFacts[], query: URLSearchParams): Page<TemplateFacts> {
  const { limit, nextToken } = parseInput(listQuery, Object.fromEntries(query));
  const after = Buffer.from(nextToken, "base64url").toString("utf8");
  if (nextToken !== "" && !/^[a-z0-9-_/]+$/.test(after))
    throw new SandboxError("cursor_invalid", "Invalid next token");
  const left = all.filter(({ name }) => name > after).toSorted((a, b) => (a.name < b.name ? -1 : 1));
  return firstPage(left, limit, ({ name }) => Buffer.from(name).toString("base64url"));
}

function refused(what: string): SandboxError {
  const text = `this server does not ${what} by API: its operator lists them in sandboxes.templates, and a snapshot of a sandbox is one under its name`;
  return new SandboxError("template_building_unsupported", text);
}
