import {
  abortAfter,
  type Clock,
  type Logger,
  parseTemplateReference,
  SandboxError,
  type Tenants,
} from "@coppice/core";
import { Semaphore } from "@coppice/core/backend";
import { Counter, Gauge, Histogram, type Registry } from "prom-client";
import type { Catalog } from "../catalog/catalog.js";
import {
  BuildFailure,
  type BuildLimits,
  type BuildLog,
  type BuildReason,
  type BuildRecord,
} from "../model/build-record.js";
import type { BuildRequest } from "../model/build-request.js";
import type { BuildResult } from "../model/layer.js";
import type { Builder, SourceBuild, Transfer } from "../model/builder.js";
import { SERVER, type TemplateReference } from "../model/template-record.js";
import type { ImageKeeper } from "../store/image-keeper.js";
import type { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import type { Uploads } from "../uploads/uploads.js";
import { BuildLogWriter } from "./build-log-writer.js";
import { restoredLimits } from "../model/pushed-template.js";
import { REASONS } from "../reasons.js";

type TemplatesMetrics = ReturnType<typeof templatesMetrics>;

/** @param running called at each scrape: number of builds that run or wait for their turn. */
export function templatesMetrics(registry: Registry, running: () => number) {
  const registers = [registry];
  const builds = new Counter({
    name: "coppice_templates_builds_total",
    help: "Builds of templates that were started, by how they ended.",
    labelNames: ["status"],
    registers,
  });
  for (const status of ["ready", "error"]) builds.inc({ status }, 0);
  const seconds = new Histogram({
    name: "coppice_templates_build_seconds",
    help: "Time from the start of a build to its end.",
    buckets: [1, 2.5, 5, 10, 30, 60, 150, 300, 600, 1800, 3600],
    registers,
  });
  new Gauge({
    name: "coppice_templates_builds_active",
    help: "Builds that run now, or wait for their turn.",
    registers,
    collect() {
      this.set(running());
    },
  });
  return {
    /** @param tookMs undefined for one that was cancelled. */
    ended(status: "ready" | "error", tookMs?: number) {
      builds.inc({ status });
      if (tookMs !== undefined) seconds.observe(tookMs / 1000);
    },
  };
}

/** The other servers, which are told of builds, and have templates that these start from. */
export interface OtherServers {
  /** Fetches a template that another server keeps, for a tenant. @throws SandboxError, the signal's reason */
  source(reference: TemplateReference, tenant: string, signal: AbortSignal): Promise<SourceBuild | undefined>;
  /** Called before a build is seen to be ready. @throws Error, which fails the build */
  announce(templateId: string, buildId: string): Promise<void>;
  /** Called after its end. */
  soon(): void;
}

interface BuildQueueOptions {
  readonly builder: Builder;
  readonly store: () => TemplatesStore;
  readonly catalog: Catalog;
  readonly uploads: Uploads;
  readonly keeper: ImageKeeper;
  /** Undefined without a registry for the fleet. */
  readonly sharing: OtherServers | undefined;
  readonly settings: TemplatesConfig;
  readonly metrics: TemplatesMetrics;
  /** Who shares the turns. */
  readonly tenants: Tenants;
  readonly clock: Clock;
  readonly log: Logger;
}

interface RunningBuild {
  readonly log: BuildLogWriter;
  readonly aborting: AbortController;
  readonly done: Promise<void>;
  /** Of the image that it pulls, or has pulled. */
  transfer: Transfer | undefined;
}

const CANCELLED = "build was cancelled";
const RESTARTED = "The server restarted during this build; build again";
const INTERNAL = "An internal error occurred. Please try again or contact support with the build ID.";

/** Runs builds, a bounded number at a time, and records how they end. */
export class BuildQueue {
  readonly #options: BuildQueueOptions;
  readonly #turns: Semaphore;
  readonly #running = new Map<string, RunningBuild>();
  #isStopped = false;

  constructor(options: BuildQueueOptions) {
    this.#options = options;
    const { settings, tenants } = options;
    this.#turns = new Semaphore(settings.buildConcurrency, { tenants });
  }

  get running(): number {
    return this.#running.size;
  }

  /**
   * Starts a waiting build. Others of its template that run and have one of its tags are cancelled.
   * @param onEntry sees every line of its log.
   * @throws SandboxError build_not_waiting, server_stopping
   */
  start(request: BuildRequest, onEntry?: BuildLog): void {
    const { store, clock, settings, log } = this.#options;
    const { buildId } = request;
    if (this.#isStopped) throw new SandboxError("server_stopping", "the server is stopping");
    if (!store().builds.start(buildId, clock.now()))
      throw new SandboxError(REASONS.build_not_waiting, "build is not in waiting state");
    for (const rival of store().builds.rivals(buildId)) if (rival.state === "building") this.cancel(rival);
    const lines = new BuildLogWriter({
      buildId,
      logs: () => store().logs,
      maxLog: settings.maxLog,
      clock,
      log,
    });
    const aborting = new AbortController();
    const done = this.#run(request, { log: lines, aborting, onEntry })
      .then(() => this.#tidy(request))
      .catch((error: unknown) => log.error({ build: buildId, err: error }, "a build was not recorded"))
      .finally(() => this.#running.delete(buildId));
    this.#running.set(buildId, { log: lines, aborting, done, transfer: undefined });
  }

  /** Resolves when a build has ended, at once for one that is not running. */
  async ended(buildId: string): Promise<void> {
    await this.#running.get(buildId)?.done;
  }

  /** How far the pull of a running build has come. */
  transferOf(buildId: string): Transfer | undefined {
    return this.#running.get(buildId)?.transfer;
  }

  /** Writes the entries of a running build that wait. */
  flush(buildId: string): void {
    this.#running.get(buildId)?.log.flush();
  }

  /** Fails a build that has not ended. What it does is undone after this returns. */
  cancel({ id }: Pick<BuildRecord, "id">, message = CANCELLED): void {
    const running = this.#running.get(id);
    running?.log.add({ level: "error", message: `Build failed: ${message}`, step: undefined });
    running?.log.close();
    const isCancelled = this.#fail(id, { message, step: undefined });
    if (isCancelled && running !== undefined) this.#options.metrics.ended("error");
    running?.aborting.abort(new BuildFailure(message, undefined));
  }

  /** Cancels all builds. Resolves when nothing of them is left. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    const running = [...this.#running];
    for (const [id] of running) this.cancel({ id }, RESTARTED);
    await Promise.all(running.map(([, { done }]) => done));
  }

  async #run(
    request: BuildRequest,
    {
      log,
      aborting,
      onEntry,
    }: Pick<RunningBuild, "log" | "aborting"> & { readonly onEntry: BuildLog | undefined },
  ): Promise<void> {
    const { settings, clock, metrics } = this.#options;
    const { buildTimeout: timeoutMs } = settings;
    const { signal } = aborting;
    const beganAtMs = clock.now();
    const takenMs = (): number => clock.now() - beganAtMs;
    const overdue = (): Error => new BuildFailure(`build timed out after ${timeoutMs / 1000}s`, undefined);
    try {
      const isEnded = await this.#turns.run(
        async () => {
          using _limit = abortAfter(aborting, { clock, timeoutMs, overdue });
          return await this.#build(request, log, { signal, onEntry });
        },
        signal,
        request.tenant,
      );
      if (isEnded) metrics.ended("ready", takenMs());
    } catch (error) {
      const reason = this.#reasonOf(signal.aborted ? signal.reason : error, request.buildId);
      log.close();
      if (this.#fail(request.buildId, reason)) metrics.ended("error", takenMs());
    }
  }

  /** @returns false when the build had ended before. */
  async #build(
    request: BuildRequest,
    log: BuildLogWriter,
    { signal, onEntry }: { readonly signal: AbortSignal; readonly onEntry: BuildLog | undefined },
  ): Promise<boolean> {
    const { builder, catalog, keeper, uploads } = this.#options;
    const { tenant, backend } = request;
    using layers = keeper.layersOf(tenant, backend, this.#storageOf(tenant));
    const fetched = await this.#fetched(request, signal);
    const result = await builder.build(request, {
      signal,
      log(entry) {
        log.add(entry);
        onEntry?.(entry);
      },
      layers,
      report: (transfer) => {
        const running = this.#running.get(request.buildId);
        if (running !== undefined) running.transfer = transfer;
      },
      findTemplate: (reference) => {
        const source = fetched ?? catalog.source(parseTemplateReference(reference), tenant);
        layers.hold(source.image);
        return source;
      },
      findUpload: (hash) => uploads.find({ tenant, hash }),
    });
    signal.throwIfAborted();
    const limits = restoredLimits(request, result, this.#options.settings, (message) =>
      log.add({ level: "warn", message, step: undefined }),
    );
    await this.#options.sharing?.announce(request.templateId, request.buildId);
    log.close();
    // While the image is still held.
    return this.#finish(request, result, limits);
  }

  /** The build that it starts from, if another server keeps the template. */
  async #fetched({ base, tenant }: BuildRequest, signal: AbortSignal): Promise<SourceBuild | undefined> {
    const { catalog, sharing } = this.#options;
    if (base.kind !== "template") return undefined;
    const reference = parseTemplateReference(base.reference);
    const own = catalog.find(reference.name, tenant);
    const isOwn = own !== undefined && catalog.tagged(own, reference.tag) !== undefined;
    return isOwn ? undefined : sharing?.source(reference, tenant, signal);
  }

  #finish(
    { buildId, templateId, tenant, backend }: BuildRequest,
    result: BuildResult,
    limits: BuildLimits | undefined,
  ): boolean {
    const { store, clock } = this.#options;
    return store().atOnce(() => {
      if (!store().builds.finish(buildId, result, clock.now(), limits)) return false;
      store().images.add({ id: result.image, backend, tenant });
      store().templates.update({ id: templateId }, { updatedAtMs: clock.now() });
      return true;
    });
  }

  #fail(id: string, reason: BuildReason): boolean {
    const { store, clock } = this.#options;
    return store().builds.fail(id, reason, clock.now());
  }

  /** Forgets what the limits leave no room for, and removes the images that are not needed any more. */
  async #tidy({ tenant, templateId }: BuildRequest): Promise<void> {
    const { store, settings, keeper, sharing } = this.#options;
    store().builds.forget(templateId, settings.maxBuilds);
    store().layers.forget(tenant, settings.maxLayers);
    await keeper.sweep();
    await keeper.measure(tenant);
    await keeper.makeRoom(tenant, this.#storageOf(tenant));
    sharing?.soon();
  }

  /** Bytes that the images of a tenant may have. */
  #storageOf(tenant: string): number {
    return tenant === SERVER ? Number.POSITIVE_INFINITY : this.#options.settings.maxStorage;
  }

  #reasonOf(error: unknown, buildId: string): BuildReason {
    if (error instanceof BuildFailure) return { message: error.message, step: error.step };
    if (error instanceof SandboxError && error.code !== "internal")
      return { message: error.message, step: undefined };
    this.#options.log.error({ build: buildId, err: error }, "a build failed unexpectedly");
    return { message: INTERNAL, step: undefined };
  }
}
