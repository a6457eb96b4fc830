import { createHash, randomUUID } from "node:crypto";
import { stat } from "node:fs/promises";
import {
  type Clock,
  type Logger,
  messageOf,
  SandboxError,
  type TemplateFacts,
  type Templates,
} from "@coppice/core";
import type { Limits, SandboxBackend } from "@coppice/core/backend";
import { type Catalog, type ConfiguredSource, factsOf, type ReadyBuild } from "../catalog/catalog.js";
import { namespaceOf, SERVER } from "../model/template-record.js";
import type { BuildBase } from "../model/build-request.js";
import { BuildFailure, type BuildLimits, type BuildReason } from "../model/build-record.js";
import type { BuildQueue } from "../queue/build-queue.js";
import type { TemplatesStore } from "../store/templates-store.js";
import type { Uploads } from "../uploads/uploads.js";
import { builtImageOf, packFiles, type Recipe } from "./recipe.js";
import { RecipeProgress, remedyFor } from "./recipe-progress.js";
import { REASONS } from "../reasons.js";

export interface RecipeBuildsOptions {
  readonly recipes: ReadonlyMap<string, Recipe>;
  readonly templates: Pick<Templates, "all">;
  readonly store: () => TemplatesStore;
  readonly catalog: Catalog;
  readonly queue: Pick<BuildQueue, "start" | "ended" | "cancel" | "transferOf">;
  readonly uploads: Pick<Uploads, "keep">;
  readonly backendOf: (template: string) => SandboxBackend;
  /** Default limits of a template's sandboxes. */
  readonly limitsOf: (template: string) => Limits;
  /** Limits of builds where a template sets none. */
  readonly buildLimits: BuildLimits;
  /** Time until a failed build is tried again, at first. */
  readonly retryMs: number;
  readonly clock: Clock;
  readonly log: Logger;
}

/** Tag of the newest build, which sandboxes get. */
const CURRENT = "default";
/** Time between two lines about the same step. */
const REPORT_EVERY_MS = 10_000;
const LONGEST_RETRY_MS = 24 * 60 * 60 * 1000;

/**
 * Templates of the configuration that are built here. Until its build is ready, a template is what its backend has by
 * that name; one whose recipe has changed keeps its former build until the new one is ready. A build has the digest of
 * its recipe as a tag.
 */
export class RecipeBuilds {
  readonly #options: RecipeBuildsOptions;
  readonly #stopping = new AbortController();
  /** Id of the build that runs. */
  #current: string | undefined;
  #running: Promise<void> = Promise.resolve();
  #cancelRetry: (() => void) | undefined;
  /** Attempts that failed, one after the other. */
  #failures = 0;
  /** Reason that was told about each template. */
  readonly #told = new Map<string, string>();
  /** Those whose last build failed, with the reason as clients are told it. */
  readonly #failed = new Map<string, string>();

  constructor(options: RecipeBuildsOptions) {
    this.#options = options;
  }

  has(template: string): boolean {
    return this.#options.recipes.has(template);
  }

  buildOf(template: string): NonNullable<TemplateFacts["build"]> | undefined {
    // Asked at every creation: without a recipe there is nothing to look up.
    if (!this.#options.recipes.has(template)) return undefined;
    const found = this.#tagged(template, CURRENT);
    return found && factsOf(found.template, found.build).build;
  }

  /** Finds the build of a recipe, for every tenant. */
  readonly source: ConfiguredSource = ({ name, tag }) => {
    const found = this.#options.templates
      .all()
      .find((each) => each.name === name || each.aliases.includes(name));
    if (found === undefined) return undefined;
    if (tag !== CURRENT)
      throw new SandboxError("template_tag_not_found", `tag '${tag}' does not exist for template '${name}'`);
    const ready = this.has(found.name) ? this.#tagged(found.name, CURRENT) : undefined;
    if (ready !== undefined) return ready;
    throw this.#missing(found.name);
  };

  /** Builds in the background what earlier runs have not. */
  start(): void {
    const { recipes, log } = this.#options;
    const unable = [...recipes.keys()].filter((template) => !this.#canBuild(template));
    if (unable.length > 0) {
      const text = "the backend cannot build templates, and serves those that it has by itself";
      log.warn({ templates: unable }, `${text}: ${unable.join(", ")}`);
    }
    this.#running = this.#buildAll();
  }

  /** Those that are not built yet. */
  pending(): readonly string[] {
    return [...this.#options.recipes.keys()].filter(
      (template) => this.#canBuild(template) && this.buildOf(template) === undefined,
    );
  }

  async stop(): Promise<void> {
    this.#stopping.abort(new BuildFailure("the server stops", undefined));
    this.#cancelRetry?.();
    if (this.#current !== undefined) this.#options.queue.cancel({ id: this.#current });
    await this.#running;
  }

  /** Never rejects. */
  async #buildAll(): Promise<void> {
    const { clock, log, retryMs } = this.#options;
    const failed = new Set<string>();
    for (const template of this.#inOrder()) {
      if (this.#stopping.signal.aborted) return;
      const base = this.#options.recipes.get(template)?.base;
      try {
        // It would fail for the same reason.
        if (base?.kind === "template" && failed.has(base.reference)) {
          failed.add(template);
          this.#failed.set(template, `it starts from template '${base.reference}', which could not be built`);
        } else if (this.#canBuild(template)) {
          await this.#buildUnlessReady(template);
          this.#failed.delete(template);
        }
      } catch (error) {
        if (this.#stopping.signal.aborted) return;
        failed.add(template);
        const isTold = error instanceof BuildFailure;
        // Of other errors some name paths of this host.
        this.#failed.set(template, isTold ? error.message : "the log of the server has the reason");
        const step = isTold ? error.step : undefined;
        this.#tell(template, { message: messageOf(error), step });
      }
    }
    if (failed.size === 0) return;
    const delayMs = Math.min(retryMs * 2 ** this.#failures, LONGEST_RETRY_MS);
    this.#failures += 1;
    log.debug({ templates: [...failed], delayMs }, "what was not built is tried again");
    this.#cancelRetry = clock.after(delayMs, () => {
      this.#running = this.#buildAll();
    });
  }

  /** Tells a reason once, however often it is met. */
  #tell(template: string, reason: BuildReason): void {
    const { backendOf, log } = this.#options;
    if (this.#told.get(template) === reason.message) return;
    this.#told.set(template, reason.message);
    const remedy = remedyFor(reason, backendOf(template), template);
    const text = `template '${template}' was not built, and is tried again now and then: ${reason.message}`;
    log.error({ template, reason, remedy }, `${text}. Remedy: ${remedy}`);
  }

  /** Why builds cannot start from a template. */
  #missing(template: string): SandboxError {
    const base = this.#options.recipes.get(template)?.base;
    if (base === undefined || !this.#canBuild(template)) {
      const text = `template '${template}' is not built on this server, so that builds cannot start from it; its operator can give it a recipe (templates.recipes)`;
      return new SandboxError("template_not_found", text);
    }
    const reason = this.#failed.get(template);
    const text =
      reason === undefined
        ? `template '${template}' is still being built by this server: try again when it is ready`
        : `template '${template}' could not be built by this server, which tries it again now and then: ${reason}`;
    return new SandboxError(REASONS.template_not_ready, text);
  }

  #canBuild(template: string): boolean {
    return this.#options.backendOf(template).images !== undefined;
  }

  /** @throws Error with the reason of a failed build */
  async #buildUnlessReady(template: string): Promise<void> {
    const { recipes, backendOf, log } = this.#options;
    const recipe = recipes.get(template);
    const backend = backendOf(template);
    if (recipe === undefined) return;
    const tag = this.#digestOf(template);
    if (this.#tagged(template, tag)?.build.backend === backend.name) return;
    const image = await this.#imageOf(recipe, tag);
    if (image !== undefined) {
      try {
        // Its files have what the steps made.
        await this.#build(template, { ...recipe, base: image, steps: [] }, tag);
        return;
      } catch (error) {
        if (this.#stopping.signal.aborted || !(error instanceof BuildFailure)) throw error;
        const text = `template '${template}' cannot be had from '${image.path}', and is built of its recipe: ${error.message}`;
        log.warn({ template, image: image.path, err: error }, text);
      }
    }
    await this.#build(template, recipe, tag);
  }

  /** The image that somebody else has built of a recipe. */
  async #imageOf({ path }: Recipe, digest: string): Promise<(BuildBase & { kind: "layout" }) | undefined> {
    if (path === undefined) return undefined;
    const layout = builtImageOf(path, digest);
    const isThere = await stat(layout)
      .then((found) => found.isDirectory())
      .catch(() => false);
    return isThere ? { kind: "layout", path: layout } : undefined;
  }

  /** @throws BuildFailure, the signal's reason */
  async #build(template: string, recipe: Recipe, tag: string): Promise<void> {
    const { backendOf, queue, store, uploads, clock, log } = this.#options;
    const backend = backendOf(template);
    const isBuilt = recipe.base.kind === "layout";
    const { path: _path, digest: _digest, folder, ...asked } = recipe;
    for (const step of recipe.steps) {
      const { filesHash: hash } = step;
      if (hash === undefined || folder === undefined) continue;
      const { signal } = this.#stopping;
      await uploads.keep({ tenant: SERVER, hash }, (path) => packFiles({ step, folder, path }, signal));
    }
    const beganMs = clock.now();
    const { buildId, limits } = this.#enter(template, backend, tag);
    log.info(
      { template, build: buildId },
      `${isBuilt ? "unpacking" : "building"} template '${template}' in the background; sandboxes have what the backend has by that name until then`,
    );
    const progress = new RecipeProgress({
      log,
      template,
      steps: recipe.steps.length,
      transfer: () => queue.transferOf(buildId),
    });
    queue.start(
      {
        ...asked,
        // The limits of a template of the configuration are there.
        ...(isBuilt && { restore: { limits: false } }),
        templateId: template,
        buildId,
        tenant: SERVER,
        backend: backend.name,
        limits,
        force: false,
        isReproducible: true,
      },
      progress.add,
    );
    this.#current = buildId;
    let cancelReport = (): void => undefined;
    const report = (): void => {
      progress.tell();
      cancelReport = clock.after(REPORT_EVERY_MS, report);
    };
    cancelReport = clock.after(REPORT_EVERY_MS, report);
    await queue.ended(buildId);
    cancelReport();
    this.#current = undefined;
    const reason = store().builds.get({ id: buildId })?.reason;
    if (reason !== undefined) {
      if (this.#told.get(template) !== reason.message) progress.tellFailure();
      throw new BuildFailure(reason.message, reason.step);
    }
    // Builds of former recipes have no other tag.
    const former = store()
      .tags.list(template)
      .map(({ name }) => name);
    const unwanted = former.filter((name) => name !== CURRENT && name !== tag);
    store().tags.remove({ templateId: template, name: unwanted });
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
      templates.insert(recordOf(template, nowMs), "INSERT OR IGNORE");
      builds.add({ id: buildId, templateId: template, backend: backend.name, limits }, nowMs);
      for (const name of [CURRENT, tag]) tags.assign(template, name, buildId, nowMs);
    });
    return { buildId, limits };
  }

  #tagged(template: string, tag: string): ReadyBuild | undefined {
    const { store, catalog } = this.#options;
    const record = store().templates.get({ id: template });
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

/** Its name is its id. */
function recordOf(template: string, nowMs: number) {
  return {
    id: template,
    owner: SERVER,
    namespace: namespaceOf(SERVER),
    alias: template,
    isPublic: true,
    createdAtMs: nowMs,
    updatedAtMs: nowMs,
  };
}
