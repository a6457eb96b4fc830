import { createHash, randomUUID } from "node:crypto";
import {
  type Clock,
  type Limits,
  type Logger,
  messageOf,
  type SandboxBackend,
  type TemplateBuild,
} from "@coppice/core";
import type { Catalog, ReadyBuild } from "../catalog/catalog.js";
import { factsOf } from "../catalog/built-templates.js";
import { namespaceOf } from "../catalog/namespace-of.js";
import type { BuildLimits } from "../model/build-record.js";
import { SERVER } from "../model/template-record.js";
import type { BuildQueue } from "../queue/build-queue.js";
import type { TemplatesStore } from "../store/templates-store.js";
import type { Recipe } from "./recipe.js";

export interface RecipeBuildsOptions {
  readonly recipes: ReadonlyMap<string, Recipe>;
  readonly store: () => TemplatesStore;
  readonly catalog: Catalog;
  readonly queue: Pick<BuildQueue, "start" | "ended" | "cancel">;
  readonly backendOf: (template: string) => SandboxBackend;
  /** Default limits of a template's sandboxes. */
  readonly limitsOf: (template: string) => Limits;
  /** Limits of builds where a template sets none. */
  readonly buildLimits: BuildLimits;
  readonly retryMs: number;
  readonly clock: Clock;
  readonly log: Logger;
}

/** Tag of the newest build, which sandboxes get. */
const CURRENT = "default";

/**
 * Templates of the configuration that are built here. Until its build is ready, a template is what its backend has by
 * that name; one whose recipe has changed keeps its former build until the new one is ready. A build has the digest of
 * its recipe as a tag.
 */
export class RecipeBuilds {
  readonly #options: RecipeBuildsOptions;
  #isStopped = false;
  /** Id of the build that runs. */
  #current: string | undefined;
  #running: Promise<void> = Promise.resolve();
  #cancelRetry: (() => void) | undefined;

  constructor(options: RecipeBuildsOptions) {
    this.#options = options;
  }

  buildOf(template: string): TemplateBuild | undefined {
    // Asked at every creation: without a recipe there is nothing to look up.
    if (!this.#options.recipes.has(template)) return undefined;
    const found = this.#tagged(template, CURRENT);
    return found && factsOf(found.template, found.build).build;
  }

  /** Builds in the background what earlier runs have not. */
  start(): void {
    this.#running = this.#buildAll();
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#cancelRetry?.();
    if (this.#current !== undefined) this.#options.queue.cancel({ id: this.#current });
    await this.#running;
  }

  /** Never rejects. */
  async #buildAll(): Promise<void> {
    const { clock, log, retryMs } = this.#options;
    let hasFailed = false;
    for (const template of this.#inOrder()) {
      if (this.#isStopped) return;
      try {
        await this.#buildUnlessReady(template);
      } catch (error) {
        if (this.#isStopped) return;
        hasFailed = true;
        log.error({ template, err: error }, `template '${template}' was not built: ${messageOf(error)}`);
      }
    }
    if (!hasFailed) return;
    this.#cancelRetry = clock.after(retryMs, () => {
      this.#running = this.#buildAll();
    });
  }

  /** @throws Error with the reason of a failed build */
  async #buildUnlessReady(template: string): Promise<void> {
    const { recipes, backendOf, queue, store, clock, log } = this.#options;
    const recipe = recipes.get(template);
    const backend = backendOf(template);
    if (recipe === undefined) return;
    if (backend.images === undefined) {
      log.warn(
        { template, backend: backend.name },
        "the backend cannot build templates: it serves its own one",
      );
      return;
    }
    const tag = this.#digestOf(template);
    if (this.#tagged(template, tag)?.build.backend === backend.name) return;
    const beganMs = clock.now();
    const { buildId, limits } = this.#enter(template, backend, tag);
    log.info(
      { template, build: buildId },
      `building template '${template}'; its backend's own one is served until then`,
    );
    const { digest: _, ...asked } = recipe;
    queue.start(
      {
        ...asked,
        templateId: template,
        buildId,
        tenant: SERVER,
        backend: backend.name,
        limits,
        force: false,
      },
      ({ message, step }) => log.info({ template, step }, message),
    );
    this.#current = buildId;
    await queue.ended(buildId);
    this.#current = undefined;
    const reason = store().builds.find(buildId)?.reason;
    if (reason !== undefined) throw new Error(reason.message);
    // Builds of former recipes have no other tag.
    const former = store()
      .tags.list(template)
      .map(({ name }) => name);
    store().tags.remove(
      template,
      former.filter((name) => name !== CURRENT && name !== tag),
    );
    log.info({ template, tookMs: clock.now() - beganMs }, `template '${template}' is ready`);
  }

  /** Enters a waiting build. @param tag digest of its recipe. */
  #enter(
    template: string,
    backend: SandboxBackend,
    tag: string,
  ): { readonly buildId: string; readonly limits: BuildLimits } {
    const { store, clock, limitsOf, buildLimits } = this.#options;
    const own = limitsOf(template);
    const limits: BuildLimits = {
      cpuCount: own.cpuCount ?? buildLimits.cpuCount,
      memoryMiB: own.memoryMiB ?? buildLimits.memoryMiB,
      diskMiB: own.diskMiB,
    };
    const nowMs = clock.now();
    const buildId = randomUUID();
    store().atOnce(() => {
      const { templates, builds, tags } = store();
      if (templates.find(template) === undefined) templates.add(recordOf(template, nowMs), nowMs);
      builds.add({ id: buildId, templateId: template, backend: backend.name, limits }, nowMs);
      for (const name of [CURRENT, tag]) tags.assign(template, name, buildId, nowMs);
    });
    return { buildId, limits };
  }

  #tagged(template: string, tag: string): ReadyBuild | undefined {
    const { store, catalog } = this.#options;
    const record = store().templates.find(template);
    if (record === undefined || record.owner !== SERVER) return undefined;
    const build = catalog.tagged(record, tag);
    return build && { template: record, build };
  }

  /** A template comes after the one that it starts from. */
  #inOrder(): readonly string[] {
    const { recipes } = this.#options;
    const ordered = new Set<string>();
    const visit = (template: string, above: readonly string[]): void => {
      const base = recipes.get(template)?.base;
      if (base === undefined || above.includes(template)) return;
      if (base.kind === "template") visit(base.reference, [...above, template]);
      ordered.add(template);
    };
    for (const template of recipes.keys()) visit(template, []);
    return [...ordered];
  }

  /** Of the recipe and of those below it. */
  #digestOf(template: string): string {
    const hash = createHash("sha256");
    const seen = new Set<string>();
    let recipe = this.#options.recipes.get(template);
    while (recipe !== undefined && !seen.has(recipe.digest)) {
      hash.update(recipe.digest);
      seen.add(recipe.digest);
      recipe = recipe.base.kind === "template" ? this.#options.recipes.get(recipe.base.reference) : undefined;
    }
    return hash.digest("hex");
  }
}

/** Every tenant can build on it; its name is its id. */
function recordOf(template: string, nowMs: number) {
  return {
    id: template,
    owner: SERVER,
    namespace: namespaceOf(SERVER),
    alias: template,
    isPublic: true,
    createdAtMs: nowMs,
    updatedAtMs: nowMs,
    spawnCount: 0,
    lastSpawnedAtMs: undefined,
  };
}
