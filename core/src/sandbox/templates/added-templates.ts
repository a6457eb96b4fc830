import { SandboxError } from "../../kernel/errors.js";
import type { FullLimits } from "../contract/full-limits.js";
import type { SandboxesConfig } from "../model/sandboxes-config.js";
import { DEFAULT_TENANT } from "../model/tenant.js";
import { findTemplate, parseTemplateReference } from "./template-reference.js";
import type { TemplateFacts, Templates, TemplateSource } from "./templates.js";

type Settings = SandboxesConfig["templates"];

/** The templates of the configuration and of sources. */
export class AddedTemplates implements Templates {
  readonly #settings: Settings;
  readonly #defaultsOf: (backend: string | undefined) => FullLimits | undefined;
  readonly #sources: TemplateSource[] = [];

  /** @param defaultsOf default limits of a backend, or of the default backend. */
  constructor(settings: Settings, defaultsOf: (backend: string | undefined) => FullLimits | undefined) {
    this.#settings = settings;
    this.#defaultsOf = defaultsOf;
  }

  add(source: TemplateSource): void {
    this.#sources.push(source);
  }

  isBuilt(name: string): boolean {
    return this.#sources.some((source) => source.builds(name));
  }

  all(tenant?: string): readonly TemplateFacts[] {
    const configured = Object.keys(this.#settings).map((name) => this.#configured(name));
    return tenant === undefined
      ? configured
      : [...configured, ...this.#sources.flatMap((source) => source.all(tenant))];
  }

  find(text: string, tenant = DEFAULT_TENANT): TemplateFacts {
    const reference = parseTemplateReference(text);
    const name = findTemplate(this.#settings, reference);
    if (name !== undefined) return this.#configured(name);
    for (const source of this.#sources) {
      const found = source.find(reference, tenant);
      if (found !== undefined) return found;
    }
    throw new SandboxError("template_not_found", `template '${reference.name}' not found`);
  }

  #configured(name: string): TemplateFacts {
    const { aliases = [], backend, limits, readinessProbe } = this.#settings[name] ?? {};
    const builds = this.#sources.map((source) => source.buildOf(name));
    return {
      name,
      aliases,
      limits: { ...this.#defaultsOf(backend), ...limits },
      backend,
      readinessProbe,
      build: builds.find((build) => build !== undefined),
    };
  }
}
