import { createToken } from "../../kernel/token.js";
import type { Limits } from "../contract/backend.js";
import type { ReadinessProbe } from "../model/readiness-probe.js";
import type { TemplateBuild } from "../model/template-build.js";
import { type TemplateReference, findTemplate, parseTemplateReference } from "./template-reference.js";
import { SandboxError } from "../../kernel/errors.js";
import type { FullLimits } from "../contract/full-limits.js";
import type { SandboxesConfig } from "../model/sandboxes-config.js";
import { DEFAULT_TENANT } from "../model/tenant-records.js";

/** What is known of a template without making a sandbox of it. */
export interface TemplateFacts {
  /** Recorded with its sandboxes; E2B's template id. */
  readonly name: string;
  readonly aliases: readonly string[];
  /** Default limits of its sandboxes; absent where its backend cannot tell. */
  readonly limits: Limits;
  /** Backend that makes its sandboxes; undefined = the default one. */
  readonly backend?: string | undefined;
  readonly readinessProbe?: ReadinessProbe | undefined;
  /** Undefined for one that the backend has by itself. */
  readonly build?: TemplateBuild | undefined;
  /** Present for one that another server keeps. */
  readonly remote?: RemoteTemplate | undefined;
}

/** A template of another server, as a source knows it. */
export interface RemoteTemplate {
  /** True when this server has the files of its build. */
  readonly isHere: boolean;
  /**
   * Makes sure that the build is the one that the template's name stands for, and that its files are here. Sandboxes of it
   * are made after this alone, of what the name stands for then.
   * @throws SandboxError, the signal's reason
   */
  fetch(signal?: AbortSignal): Promise<void>;
}

/** Templates beside those of the configuration, and builds of those. */
export interface TemplateSource {
  /** Templates of a tenant. */
  all(tenant: string): readonly TemplateFacts[];
  /** Undefined when it has none of that name. @throws SandboxError not_found for a tag or build that it lacks */
  find(reference: TemplateReference, tenant: string): TemplateFacts | undefined;
  /** Current build of a template of the configuration, if it is built here. */
  buildOf(name: string): TemplateBuild | undefined;
  /** True for a template of the configuration that it builds, now or later: no backend needs one of that name. */
  builds(name: string): boolean;
}

/** Templates of sandboxes: those of the configuration, which every tenant has, and those of sources. */
export interface Templates {
  add(source: TemplateSource): void;
  /** True for a template of the configuration that a source builds, now or later. */
  isBuilt(name: string): boolean;
  /** Those of the configuration in its order, then a tenant's. @param tenant undefined for the configuration alone. */
  all(tenant?: string): readonly TemplateFacts[];
  /** The template of a reference. @throws SandboxError invalid_argument, not_found, with E2B's texts. */
  find(reference: string, tenant?: string): TemplateFacts;
}

export const Templates = createToken<Templates>("templates");

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
