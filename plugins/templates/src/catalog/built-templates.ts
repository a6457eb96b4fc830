import type { TemplateFacts, Templates } from "@coppice/core";
import type { TemplateRecord, TemplateReference } from "../model/template-record.js";
import type { TemplatesStore } from "../store/templates-store.js";
import type { Catalog, ReadyBuild } from "./catalog.js";

type TemplateSource = Parameters<Templates["add"]>[0];

export interface BuiltTemplatesOptions extends Pick<TemplateSource, "buildOf" | "builds"> {
  readonly catalog: Catalog;
  readonly store: () => TemplatesStore;
  /** Undefined without a registry for the fleet. */
  readonly sharing: Pick<TemplateSource, "find"> | undefined;
}

/** The templates that were built here, for the creation of sandboxes. */
export class BuiltTemplates implements TemplateSource {
  readonly #catalog: Catalog;
  readonly #store: () => TemplatesStore;
  readonly #sharing: BuiltTemplatesOptions["sharing"];

  /** Current build of a template of the configuration, if it is built here. */
  readonly buildOf: TemplateSource["buildOf"];
  readonly builds: TemplateSource["builds"];

  constructor({ catalog, store, sharing, buildOf, builds }: BuiltTemplatesOptions) {
    this.#catalog = catalog;
    this.#store = store;
    this.#sharing = sharing;
    this.buildOf = buildOf;
    this.builds = builds;
  }

  all(tenant: string): readonly TemplateFacts[] {
    return this.#store()
      .templates.list({ owner: tenant })
      .map((template) => factsOf(template, this.#catalog.tagged(template, "default")));
  }

  find(reference: TemplateReference, tenant: string): TemplateFacts | undefined {
    const own = this.#catalog.find(reference.name, tenant);
    const build = own && this.#catalog.tagged(own, reference.tag);
    if (own !== undefined && build !== undefined) return factsOf(own, build);
    const shared = this.#sharing?.find(reference, tenant);
    if (shared !== undefined) return shared;
    // Says which tag this server's own one lacks.
    this.#catalog.resolve(reference, tenant);
    return undefined;
  }
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
