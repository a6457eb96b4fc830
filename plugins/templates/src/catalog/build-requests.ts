import { randomUUID } from "node:crypto";
import {
  type Clock,
  newId,
  parseTemplateReference,
  SandboxError,
  type Snapshots,
  type Templates,
} from "@coppice/core";
import type { BuildLimits } from "../model/build-record.js";
import { namespaceOf, type TemplateRecord } from "../model/template-record.js";
import { requireStorage } from "../store/image-keeper.js";
import type { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import { Catalog } from "./catalog.js";
import { REASONS } from "../reasons.js";

interface BuildRequestsOptions {
  readonly settings: Pick<
    TemplatesConfig,
    "maxBuilds" | "maxConcurrentBuilds" | "maxTemplates" | "maxStorage" | "maxTags" | "waitingTimeout"
  >;
  readonly catalog: Catalog;
  readonly store: () => TemplatesStore;
  readonly templates: Templates;
  readonly snapshots: Snapshots;
  readonly clock: Clock;
}

/** A build as its client asks for it, before it says what to build. */
interface WantedBuild {
  readonly tenant: string;
  /** `[namespace/]alias[:tag]` */
  readonly name: string;
  readonly tags: readonly string[];
  readonly limits: BuildLimits;
  readonly backend: string;
}

interface RequestedBuild {
  readonly template: TemplateRecord;
  /** A UUID. */
  readonly buildId: string;
  /** The tag of the name first. */
  readonly tags: readonly string[];
}

const SUPERSEDED = {
  message: "The build was canceled because it was superseded by a newer one.",
  step: undefined,
};

/** Takes requests for builds: names, tags, quotas. */
export class BuildRequests {
  readonly #options: BuildRequestsOptions;

  constructor(options: BuildRequestsOptions) {
    this.#options = options;
  }

  /**
   * Enters a waiting build of the tenant's template with that name, which is made when there is none. Waiting builds
   * with one of its tags have failed then.
   * @throws SandboxError with E2B's texts
   */
  request({ tenant, name, tags, limits, backend }: WantedBuild): RequestedBuild {
    const { settings, store, clock } = this.#options;
    const { alias, tag } = parseName(name, namespaceOf(tenant));
    const all = [...new Set([...(tag === undefined ? [] : [tag]), ...tags.map(parseTag)])];
    const bound = all.length === 0 ? ["default"] : all;
    this.#requireFreeName(alias, tenant);
    const nowMs = clock.now();
    return store().atOnce(() => {
      const { templates, builds, tags: assigned } = store();
      builds.failWaiting(nowMs - settings.waitingTimeout, nowMs);
      const found = templates.get({ owner: tenant, alias });
      if (found === undefined) this.#requireRoomForTemplate(tenant);
      if (builds.countUnfinished(tenant) >= settings.maxConcurrentBuilds) {
        const text = `you have reached the maximum number of concurrent template builds (${settings.maxConcurrentBuilds}). Wait for one of them to end, or ask the operator of this server`;
        throw new SandboxError(REASONS.build_limit_reached, text);
      }
      requireStorage(store(), tenant, settings.maxStorage);
      const template = found ?? newTemplate(tenant, alias, nowMs);
      if (found === undefined) templates.insert(template);
      else templates.update({ id: template.id }, { updatedAtMs: nowMs });
      requireRoomForTags(store(), { templateId: template.id, tags: bound, maxTags: settings.maxTags });
      const buildId = randomUUID();
      builds.add({ id: buildId, templateId: template.id, backend, limits }, nowMs);
      for (const one of bound) assigned.assign(template.id, one, buildId, nowMs);
      for (const { id, state } of builds.rivals(buildId))
        if (state === "waiting") builds.fail(id, SUPERSEDED, nowMs);
      // Those that never begin end here.
      builds.forget(template.id, settings.maxBuilds);
      return { template, buildId, tags: bound };
    });
  }

  #requireFreeName(alias: string, tenant: string): void {
    const { catalog, store, templates, snapshots } = this.#options;
    requireUnconfigured(alias, templates);
    const named = store().templates.get({ id: alias });
    const isId = named !== undefined && catalog.find(alias, tenant)?.id === alias;
    const isSnapshot = snapshots
      .of(tenant)
      .list()
      .some((one) => one.name?.split(":")[0] === alias);
    if (isId || isSnapshot)
      throw new SandboxError(REASONS.template_name_taken, `Alias '${alias}' is already used`);
  }

  #requireRoomForTemplate(tenant: string): void {
    const { settings, store } = this.#options;
    if (store().templates.count({ owner: tenant }) < settings.maxTemplates) return;
    const text = `you have reached the maximum number of templates (${settings.maxTemplates})`;
    throw new SandboxError(REASONS.template_limit_reached, text);
  }
}

/** @throws SandboxError invalid_argument for more tags than a template may have. */
function requireRoomForTags(
  store: TemplatesStore,
  {
    templateId,
    tags,
    maxTags,
  }: { readonly templateId: string; readonly tags: readonly string[]; readonly maxTags: number },
): void {
  if (store.tags.countWith(templateId, tags) <= maxTags) return;
  throw new SandboxError("request_invalid", `a template may have ${maxTags} tags`);
}

/** @throws SandboxError template_read_only for a name of the configuration. */
export function requireUnconfigured(name: string, templates: Templates): void {
  if (templates.all().some((one) => one.name === name || one.aliases.includes(name))) throw readOnly(name);
}

/** Refuses to change a template of the configuration. */
export function readOnly(name: string): SandboxError {
  const text = `template '${name}' is one of this server's configuration (sandboxes.templates), which clients do not change`;
  return new SandboxError(REASONS.template_read_only, text);
}

/** @throws SandboxError invalid_argument `Invalid tag: …` */
function parseTag(tag: string): string {
  try {
    return parseTemplateReference(`name:${tag}`, { isNew: true }).tag;
  } catch (error) {
    throw new SandboxError("template_reference_invalid", `Invalid tag: ${cut(tag)}`, { cause: error });
  }
}

function parseName(
  text: string,
  namespace: string,
): { readonly alias: string; readonly tag: string | undefined } {
  const [name = "", tag, ...more] = text.split(":");
  const parsed = readName(more.length === 0 ? name : text);
  const [first = "", second] = parsed.split("/");
  if (second !== undefined && first !== namespace) {
    const refused = `namespace '${first}' must match your team '${namespace}'`;
    throw new SandboxError("template_reference_invalid", refused);
  }
  return { alias: second ?? first, tag: tag === undefined ? undefined : parseTag(tag) };
}

function readName(text: string): string {
  try {
    return parseTemplateReference(text, { isNew: true }).name;
  } catch (error) {
    const refused = `Invalid name: invalid template ID: ${cut(text)}`;
    throw new SandboxError("template_reference_invalid", refused, { cause: error });
  }
}

function newTemplate(owner: string, alias: string, nowMs: number): TemplateRecord {
  return {
    id: newId("template"),
    owner,
    namespace: namespaceOf(owner),
    alias,
    isPublic: false,
    createdAtMs: nowMs,
    updatedAtMs: nowMs,
    spawnCount: 0,
  };
}

/** A part of a client's text for a message. */
function cut(text: string): string {
  return text.length > 100 ? `${text.slice(0, 100)}…` : text;
}

/** Further tags for a build. */
interface WantedTags {
  readonly template: TemplateRecord;
  /** As its caller calls the template. */
  readonly name: string;
  /** One that leads to the build, or the id of the build. */
  readonly tag: string;
  /** As `parseTags` returns them. */
  readonly tags: readonly string[];
}

/** Gives a ready build more tags. @returns its id. @throws SandboxError with E2B's texts */
export function assignTags(
  store: TemplatesStore,
  { template, name, tag, tags }: WantedTags,
  { maxTags, nowMs }: { readonly maxTags: number; readonly nowMs: number },
): string {
  const build = new Catalog(() => store).tagged(template, tag);
  if (build === undefined) {
    const text = `Template '${name}' with tag '${tag}' not found`;
    throw new SandboxError("template_tag_not_found", text);
  }
  requireRoomForTags(store, { templateId: template.id, tags, maxTags });
  store.atOnce(() => {
    for (const one of tags) store.tags.assign(template.id, one, build.id, nowMs);
  });
  return build.id;
}

/** Checks tags. @returns each once. @throws SandboxError with E2B's texts, also for none. */
export function parseTags(tags: readonly string[]): readonly string[] {
  if (tags.length === 0)
    throw new SandboxError(REASONS.template_build_invalid, "At least one tag is required");
  return [...new Set(tags.map(parseTag))];
}

/** As `parseTags`, for tags to remove: `default` cannot be. */
export function parseRemovedTags(tags: readonly string[]): readonly string[] {
  const removed = parseTags(tags);
  if (!removed.includes("default")) return removed;
  throw new SandboxError(REASONS.template_build_invalid, "Cannot delete the 'default' tag");
}
