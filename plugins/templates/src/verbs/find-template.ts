import { SandboxError } from "@coppice/core";
import { readOnly } from "../catalog/build-requests.js";
import { SERVER, type TemplateRecord } from "../model/template-record.js";
import type { TemplatesStore } from "../store/templates-store.js";
import { REASONS } from "../reasons.js";

/** What the operator calls a template: with its namespace, but for those of the configuration. */
export function nameOf({ alias, namespace, owner }: TemplateRecord): string {
  return owner === SERVER ? alias : `${namespace}/${alias}`;
}

/** As `findTemplate`, but for those of the configuration. @throws SandboxError template_read_only for one of them. */
export function findTenantsTemplate(store: TemplatesStore, name: string): TemplateRecord {
  const template = findTemplate(store, name);
  if (template.owner === SERVER) throw readOnly(name);
  return template;
}

/**
 * Finds a template of any tenant by its id, by `namespace/alias`, or by its alias alone.
 * @throws SandboxError template_not_found; usage_invalid when several tenants have one of that alias.
 */
export function findTemplate({ templates }: TemplatesStore, name: string): TemplateRecord {
  const byId = templates.get({ id: name });
  if (byId !== undefined) return byId;
  const found = templates.list().filter((each) => nameOf(each) === name || each.alias === name);
  const exact = found.find((each) => nameOf(each) === name);
  const [template, ...others] = exact === undefined ? found : [exact];
  if (template === undefined) throw new SandboxError("template_not_found", `template '${name}' not found`);
  if (others.length === 0) return template;
  const names = found.map((each) => nameOf(each)).join(", ");
  throw new SandboxError("usage_invalid", `several tenants have a template '${name}': name one of ${names}`);
}

/** True when every tenant may create sandboxes from it: one of the configuration cannot be published, and is for all. */
export function isForAll({ isPublic, owner }: TemplateRecord): boolean {
  return isPublic || owner === SERVER;
}

/**
 * Packages of the build of a tag.
 * @param reference name[:tag]. @throws SandboxError template_not_found, build_not_found
 */
export function contentsOf(store: TemplatesStore, reference: string): readonly string[] {
  const [name = "", tag = "default"] = reference.split(":");
  const build = store.builds.tagged(findTemplate(store, name).id, tag);
  const contents = build?.result && store.images.contentsOf(build.result.image);
  if (contents !== undefined) return contents;
  const message = `the contents of '${reference}' are not known: it has no build that is ready, or one of an earlier version`;
  throw new SandboxError(REASONS.build_not_found, message);
}
