import type { TemplateFacts, TemplateReference, TemplateSource } from "@coppice/core";
import type { TemplateRecord } from "../model/template-record.js";
import type { TemplatesStore } from "../store/templates-store.js";
import type { Catalog, ReadyBuild } from "./catalog.js";

export interface BuiltTemplatesOptions extends Pick<TemplateSource, "buildOf" | "builds"> {
  readonly catalog: Catalog;
  readonly store: () => TemplatesStore;
}

/** The templates that were built here, for the creation of sandboxes. */
export class BuiltTemplates implements TemplateSource {
  readonly #catalog: Catalog;
  readonly #store: () => TemplatesStore;

  /** Current build of a template of the configuration, if it is built here. */
  readonly buildOf: TemplateSource["buildOf"];
  readonly builds: TemplateSource["builds"];

  constructor({ catalog, store, buildOf, builds }: BuiltTemplatesOptions) {
    this.#catalog = catalog;
    this.#store = store;
    this.buildOf = buildOf;
    this.builds = builds;
  }

  all(tenant: string): readonly TemplateFacts[] {
    return this.#store()
      .templates.list(tenant)
      .map((template) => factsOf(template, this.#catalog.tagged(template, "default")));
  }

  find(reference: TemplateReference, tenant: string): TemplateFacts | undefined {
    const found = this.#catalog.resolve(reference, tenant);
    return found && factsOf(found.template, found.build);
  }
}

/** What a sandbox of a template begins with. */
export function factsOf(
  { id: name, alias, namespace }: TemplateRecord,
  build: ReadyBuild["build"] | undefined,
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
