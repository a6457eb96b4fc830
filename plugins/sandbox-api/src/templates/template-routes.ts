import {
  type Clock,
  requestOf,
  type RequestCarrier,
  type Sandboxes,
  SandboxError,
  type SnapshotRecord,
  type TemplateFacts,
  type Templates,
  type TenantSnapshots,
  type Router,
} from "@coppice/core";
import { listTemplates } from "./list-templates.js";
import {
  aliasBody,
  snapshotTagsBody,
  templateBody,
  templateDetailBody,
  templateTagsBody,
  type TemplateUse,
} from "./template-body.js";

export interface TemplateRoutesOptions {
  readonly templates: Templates;
  readonly clock: Clock;
  readonly sandboxes: (carrier: RequestCarrier) => Sandboxes;
  readonly snapshots: (carrier: RequestCarrier) => TenantSnapshots;
}

/** Routes by which E2B's clients read templates; a snapshot counts as one. */
export function mountTemplates(
  router: Router,
  { templates, clock, sandboxes, snapshots }: TemplateRoutesOptions,
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
    ctx.body = page.templates.map((template) => templateBody(useOf(template, ctx)));
  });

  router.get("/templates/aliases/:alias", (ctx) => {
    const found = find(ctx.params["alias"] ?? "", ctx);
    ctx.body = "takenAtMs" in found ? aliasBody(found.id, false) : aliasBody(found.name, true);
  });

  router.get("/templates/:id", (ctx) => {
    ctx.body = templateDetailBody(useOf(templates.find(ctx.params["id"] ?? ""), ctx));
  });

  router.get("/templates/:id/tags", (ctx) => {
    const found = find(ctx.params["id"] ?? "", ctx);
    ctx.body = "takenAtMs" in found ? snapshotTagsBody(found) : templateTagsBody(found, servedSinceMs);
  });

  // Before the route of one template, which would take the word for an id.
  router.delete("/templates/tags", () => {
    throw refused("does not tag templates by API");
  });

  router.delete("/templates/:id", async (ctx) => {
    const found = find(ctx.params["id"] ?? "", ctx);
    if (!("takenAtMs" in found)) throw refused("does not delete templates by API");
    await snapshots(ctx).remove(found.id);
    ctx.status = 204;
  });

  for (const path of ["/templates", "/v2/templates", "/v3/templates"]) {
    router.post(path, () => {
      throw refused("does not build templates by API");
    });
  }
  router.patch(["/templates/:id", "/v2/templates/:id"], () => {
    throw refused("does not change templates by API");
  });
  router.post("/templates/tags", () => {
    throw refused("does not tag templates by API");
  });
}

function refused(what: string): SandboxError {
  const text = `this server ${what}: its operator lists them in sandboxes.templates, and a snapshot of a sandbox is one under its name`;
  return new SandboxError("template_building_unsupported", text);
}
