import { abortAfter, type Clock, type Logger, SandboxError } from "@coppice/core";
import type { Backends } from "@coppice/core/backend";
import type { ImagePuller } from "../images/image-puller.js";
import { BuildFailure } from "../model/build-record.js";
import type { RegistryCredentials } from "../model/build-request.js";
import { SERVER } from "../model/template-record.js";
import type { ImageKeeper } from "../store/image-keeper.js";
import type { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import type { FoundBuild } from "./shared-catalog.js";
import { REASONS } from "../reasons.js";

export interface TemplateCopiesOptions {
  readonly puller: Pick<ImagePuller, "find">;
  readonly registry: string;
  readonly credentials: RegistryCredentials | undefined;
  /** Time after which a failed build is tried again. */
  readonly retryMs: number;
  readonly backends: Backends;
  readonly store: () => TemplatesStore;
  readonly keeper: ImageKeeper;
  readonly settings: Pick<TemplatesConfig, "buildTimeout" | "images">;
  readonly clock: Clock;
  readonly log: Pick<Logger, "info" | "warn">;
}

/** The builds of other servers' templates that this one has fetched, or can fetch. */
export class TemplateCopies {
  readonly #options: TemplateCopiesOptions;
  readonly #fetching = new Map<string, Promise<void>>();
  /** By build, when one that could not be fetched is tried again. */
  readonly #failed = new Map<string, number>();
  readonly #stopping = new AbortController();

  constructor(options: TemplateCopiesOptions) {
    this.#options = options;
  }

  find(buildId: string) {
    return this.#options.store().copies.get({ id: buildId });
  }

  /** True for a build that is worth a try. */
  canFetch({ buildId, build: { digest, backend } }: FoundBuild): boolean {
    const { backends, clock } = this.#options;
    const hasBackend = backends.all().some(({ name, images }) => name === backend && images !== undefined);
    return digest !== undefined && hasBackend && (this.#failed.get(buildId) ?? 0) <= clock.now();
  }

  /** Fetches a build; all who want it wait for the same transfer. @throws SandboxError */
  async fetch(found: FoundBuild): Promise<void> {
    const { buildId } = found;
    if (this.find(buildId) !== undefined) return;
    let fetching = this.#fetching.get(buildId);
    if (fetching === undefined) {
      fetching = this.#fetch(found).finally(() => this.#fetching.delete(buildId));
      this.#fetching.set(buildId, fetching);
    }
    await fetching;
  }

  /** Removes what is not in use for a build any more. */
  retain(needed: ReadonlySet<string>): void {
    const { copies } = this.#options.store();
    for (const { id } of copies.all()) if (!needed.has(id)) copies.remove({ id });
    for (const [id, untilMs] of this.#failed)
      if (untilMs <= this.#options.clock.now()) this.#failed.delete(id);
  }

  /** Resolves when nothing is being fetched any more. */
  async stop(): Promise<void> {
    this.#stopping.abort(new SandboxError("server_stopping", "the server is stopping"));
    await Promise.allSettled(this.#fetching.values());
  }

  async #fetch(found: FoundBuild): Promise<void> {
    const { clock, settings, retryMs, log } = this.#options;
    const { buildId, templateId } = found;
    const aborting = new AbortController();
    const { buildTimeout: timeoutMs } = settings;
    const overdue = (): Error => new SandboxError(REASONS.template_not_fetched, "its registry took too long");
    using _limit = abortAfter(aborting, { clock, timeoutMs, overdue });
    const signal = AbortSignal.any([aborting.signal, this.#stopping.signal]);
    try {
      await this.#pull(found, signal);
      log.info({ template: templateId, build: buildId }, "a template of another server was fetched");
    } catch (error) {
      this.#stopping.signal.throwIfAborted();
      this.#failed.set(buildId, clock.now() + retryMs);
      log.warn({ template: templateId, build: buildId, err: error }, "a template could not be fetched");
      const reason =
        error instanceof BuildFailure || error instanceof SandboxError ? error.message : "it failed";
      const text = `template '${templateId}' cannot be fetched from the registry of this server: ${reason}`;
      throw new SandboxError(REASONS.template_not_fetched, text, { cause: error });
    }
  }

  async #pull({ templateId, buildId, build }: FoundBuild, signal: AbortSignal): Promise<void> {
    const { puller, registry, credentials, backends, keeper, settings, store, clock } = this.#options;
    const { images } = backends.get(build.backend);
    if (images === undefined || build.digest === undefined) throw new Error("it is in no registry");
    // The digest decides: what else the registry has by this name is refused.
    const reference = `${registry}/${templateId}@${build.digest}`;
    using remote = await puller.find({ reference, credentials }, signal);
    await using made = await remote.pull(() => {});
    if (made.template === undefined) throw new BuildFailure("its image is of no template", "base");
    using layers = keeper.layersOf(SERVER, build.backend);
    const image = layers.nameImage();
    const { start, limits: _, ...context } = made.template;
    const { maxSize: maxBytes, maxEntries } = settings.images;
    try {
      await images.unpack(
        image,
        { layout: made.layout, reference: made.reference, maxBytes, maxEntries },
        signal,
      );
      signal.throwIfAborted();
      const bytes = await images.usage(image);
      const result = { image, context, start, bytes };
      store().copies.insert({ id: buildId, image, result, usedAtMs: clock.now() }, "REPLACE");
    } catch (error) {
      await images.remove(image).catch(() => {
        // The next sweep tries again.
      });
      throw error;
    }
  }
}
