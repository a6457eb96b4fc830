import { SandboxError, type TemplateFacts, type Templates } from "@coppice/core";
import type { BuildRecord } from "../model/build-record.js";
import type { SourceBuild } from "../model/builder.js";
import {
  namespaceOf,
  SERVER,
  type TemplateRecord,
  type TemplateReference,
} from "../model/template-record.js";
import type { TemplatesStore } from "../store/templates-store.js";
import { REASONS } from "../reasons.js";

/** A build that has made an image. */
export interface ReadyBuild {
  readonly template: TemplateRecord;
  readonly build: BuildRecord & { readonly result: NonNullable<BuildRecord["result"]> };
}

/**
 * Finds the build of a template of the configuration, by its name or an alias; undefined when none is called so.
 * @throws SandboxError with the reason why it has no build
 */
export type ConfiguredSource = (reference: TemplateReference) => ReadyBuild | undefined;

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** Finds built templates by the names that tenants use. For a tenant, the private templates of others do not exist. */
export class Catalog {
  readonly #store: () => TemplatesStore;
  readonly #configured: ConfiguredSource;

  /** @param configured for what stands on a template of the configuration. */
  constructor(store: () => TemplatesStore, configured: ConfiguredSource = () => undefined) {
    this.#store = store;
    this.#configured = configured;
  }

  /** The template of a name, `[namespace/]alias` or an id, that a tenant may use. */
  find(name: string, tenant: string): TemplateRecord | undefined {
    const { templates } = this.#store();
    const [first = "", alias] = name.split("/");
    // Those of the configuration are there while it has them.
    const mayUse = ({ owner, isPublic }: TemplateRecord): boolean =>
      owner === tenant || (isPublic && owner !== SERVER);
    if (alias === undefined)
      return templates.get({ owner: tenant, alias: name }) ?? [templates.get({ id: name })].find(isUsable);
    const own = first === namespaceOf(tenant) ? templates.get({ owner: tenant, alias }) : undefined;
    return own ?? templates.all({ namespace: first, alias }).find(mayUse);

    function isUsable(template: TemplateRecord | undefined): template is TemplateRecord {
      return template !== undefined && mayUse(template);
    }
  }

  /**
   * The template of a name, if it is the tenant's own.
   * @throws SandboxError template_not_found; template_not_owned for a public one of another tenant.
   */
  own(name: string, tenant: string): TemplateRecord {
    const found = this.find(name, tenant);
    if (found === undefined) throw new SandboxError("template_not_found", `template '${name}' not found`);
    if (found.owner === tenant) return found;
    throw new SandboxError(REASONS.template_not_owned, "User does not have access to the template");
  }

  /** The ready build that a tag, or a build's UUID, of a template leads to. */
  tagged(template: TemplateRecord, tag: string): ReadyBuild["build"] | undefined {
    const { builds } = this.#store();
    const found = UUID.test(tag) ? builds.get({ id: tag }) : builds.tagged(template.id, tag);
    const isItsOwn = found?.templateId === template.id && found.state === "ready";
    return isItsOwn && found.result !== undefined ? { ...found, result: found.result } : undefined;
  }

  /**
   * The ready build of a reference; undefined when there is no such template.
   * @throws SandboxError template_not_ready, template_tag_not_found
   */
  resolve(reference: TemplateReference, tenant: string): ReadyBuild | undefined {
    const configured = this.#configured(reference);
    if (configured !== undefined) return configured;
    const { name, tag } = reference;
    const template = this.find(name, tenant);
    if (template === undefined) return undefined;
    const build = this.tagged(template, tag);
    if (build !== undefined) return { template, build };
    throw new SandboxError("template_tag_not_found", `tag '${tag}' does not exist for template '${name}'`);
  }

  /** The build that another one starts from. @throws SandboxError template_not_ready, not_found */
  source(reference: TemplateReference, tenant: string): SourceBuild {
    const found = this.resolve(reference, tenant);
    if (found === undefined)
      throw new SandboxError("template_not_found", `template '${reference.name}' not found`);
    const { backend, result } = found.build;
    return { backend, ...result };
  }
}

type TemplateSource = Parameters<Templates["add"]>[0];

/**
 * The templates that were built here, for the creation of sandboxes.
 * @param configured tells of those of the configuration. @param sharing undefined without a registry for the fleet.
 */
export function builtTemplates(
  catalog: Catalog,
  store: () => TemplatesStore,
  configured: Pick<TemplateSource, "buildOf" | "builds">,
  sharing: Pick<TemplateSource, "find"> | undefined,
): TemplateSource {
  return {
    ...configured,
    all: (tenant) =>
      store()
        .templates.list({ owner: tenant })
        .map((template) => factsOf(template, catalog.tagged(template, "default"))),
    find(reference, tenant) {
      const own = catalog.find(reference.name, tenant);
      const build = own && catalog.tagged(own, reference.tag);
      if (own !== undefined && build !== undefined) return factsOf(own, build);
      const shared = sharing?.find(reference, tenant);
      // Says which tag this server's own one lacks.
      if (shared === undefined) catalog.resolve(reference, tenant);
      return shared;
    },
  };
}

/** What a sandbox of a template begins with. */
export function factsOf(
  { id: name, alias, namespace }: Pick<TemplateRecord, "id" | "alias" | "namespace">,
  build: Pick<ReadyBuild["build"], "id" | "backend" | "limits" | "result"> | undefined,
): TemplateFacts {
  const aliases = [alias, `${namespace}/${alias}`];
  if (build === undefined) return { name, aliases, limits: {} };
  const { id, backend, limits, result } = build;
  const { image, context, start } = result;
  const { user, workdir } = context;
  return {
    name,
    aliases,
    limits,
    backend,
    build: { id, image: { id: image, user, workdir }, limits, start },
  };
}
