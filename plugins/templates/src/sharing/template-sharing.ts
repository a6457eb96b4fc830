import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import {
  type Clock,
  type Logger,
  SandboxError,
  type SharedTemplates,
  type SnapshotRecord,
  type TemplateFacts,
} from "@coppice/core";
import {
  namespaceOf,
  SERVER,
  type TemplateRecord,
  type TemplateReference,
} from "../model/template-record.js";
import { Semaphore } from "@coppice/core/backend";
import { factsOf } from "../catalog/catalog.js";
import { LEAST_MEMORY_MIB } from "../model/build-record.js";
import type { SourceBuild } from "../model/builder.js";
import type { RegistryCredentials } from "../model/build-request.js";
import type { OtherServers } from "../queue/build-queue.js";
import type { TemplatePushes, WantedPush } from "../queue/template-pushes.js";
import type { ImageKeeper } from "../store/image-keeper.js";
import type { TemplatesStore } from "../store/templates-store.js";
import { SharedCatalog, type SharedRecord, type SharedTemplate, sharedText } from "./shared-catalog.js";
import type { TemplateCopies } from "./template-copies.js";
import { REASONS } from "../reasons.js";

type TemplateRecords = NonNullable<SharedTemplates["records"]>;

export interface TemplateSharingOptions {
  readonly shared: SharedTemplates;
  readonly copies: TemplateCopies;
  readonly pushes: Pick<TemplatePushes, "prepare">;
  /** `registry.example.com/coppice` */
  readonly registry: string;
  readonly credentials: RegistryCredentials | undefined;
  readonly intervalMs: number;
  /** Those that sandboxes of this server were made of. */
  readonly buildsInUse: () => Iterable<string>;
  readonly store: () => TemplatesStore;
  readonly keeper: Pick<ImageKeeper, "sweep">;
  readonly clock: Clock;
  readonly log: Pick<Logger, "info" | "warn">;
}

/** How often a build tries to tell the others that its tags are about to move. */
const ATTEMPTS = 10;
const PAUSE_MS = 1000;
/** Reasons for which a build is never pushed, whatever its registry does. */
const UNSHAREABLE: ReadonlySet<string> = new Set(["image_too_large", "template_push_unsupported"]);
/** Until the other plugins have started. */
const FIRST_MS = 500;

/**
 * Shares templates with the other servers of a fleet: the server that keeps one pushes its builds and tells their digests;
 * each other one finds them, and fetches what it makes sandboxes of.
 */
export class TemplateSharing implements OtherServers {
  readonly #options: TemplateSharingOptions;
  readonly #catalog: SharedCatalog;
  readonly #stopping = new AbortController();
  #running: Promise<void> = Promise.resolve();
  /** True when a look begins after the one that is under way. */
  #isWaiting = false;
  #disarm = (): void => {};
  /** Ids of snapshots. */
  readonly #lent = new Set<string>();
  /** Builds whose tags are about to move to them. */
  readonly #announced = new Set<string>();
  /** Builds that no registry can have. */
  readonly #unshareable = new Set<string>();
  readonly #telling = new Semaphore(1);

  constructor(options: TemplateSharingOptions) {
    this.#options = options;
    this.#catalog = new SharedCatalog(options.shared);
  }

  start(): void {
    this.#arm(FIRST_MS);
  }

  async stop(): Promise<void> {
    this.#stopping.abort(new SandboxError("server_stopping", "the server is stopping"));
    this.#disarm();
    await this.#options.copies.stop();
    await this.#running;
  }

  /**
   * What a sandbox of a shared template begins with; undefined where there is none. @throws SandboxError
   * template_not_fetched where this server cannot make one now
   */
  find(reference: TemplateReference, tenant: string): TemplateFacts | undefined {
    const found = this.#catalog.find(reference, tenant);
    if (found === undefined) return undefined;
    const { copies } = this.#options;
    const { templateId: id, template, buildId, build } = found;
    const copy = copies.find(buildId);
    if (copy === undefined && !copies.canFetch(found)) {
      // The catalogue of its keeper says what it lacks. To all others it exists.
      if (this.#options.store().templates.has({ id })) return undefined;
      const text = `template '${reference.name}' cannot be fetched now, and this server has no files of it, please retry`;
      throw new SandboxError(REASONS.template_not_fetched, text);
    }
    const result = copy?.result ?? {
      image: "",
      context: { environment: {}, user: "", workdir: undefined },
      start: undefined,
      bytes: 0,
    };
    const { backend, limits } = build;
    const facts = factsOf(
      { ...template, id: template.snapshotOf ?? id },
      { id: buildId, backend, limits: { ...limits, diskMiB: limits.diskMiB }, result },
    );
    const fetch = async (signal?: AbortSignal): Promise<void> => {
      await this.#catalog.refresh(id);
      // During a transfer another build may have become what the name stands for.
      for (;;) {
        const now = this.#catalog.find(reference, tenant);
        if (now === undefined)
          throw new SandboxError("template_not_found", `template '${reference.name}' not found`);
        if (copies.find(now.buildId) !== undefined) return;
        await untilAborted(copies.fetch(now), signal);
      }
    };
    return { ...facts, remote: { isHere: copy !== undefined, fetch } };
  }

  async source(
    reference: TemplateReference,
    tenant: string,
    signal: AbortSignal,
  ): Promise<SourceBuild | undefined> {
    const facts = this.find(reference, tenant);
    await facts?.remote?.fetch(signal);
    const found = facts && this.#catalog.find(reference, tenant);
    const copy = found && this.#options.copies.find(found.buildId);
    return found && copy && { backend: found.build.backend, ...copy.result };
  }

  /** Notes that a sandbox was made of a copy. */
  used(buildId: string): void {
    this.#options.store().copies.update({ id: buildId }, { usedAtMs: this.#options.clock.now() });
  }

  /**
   * Takes a build's tags from what the others know, before a client sees that it is ready: none of them makes sandboxes of
   * the build before it then. @throws SandboxError when the others cannot be told
   */
  async announce(templateId: string, buildId: string): Promise<void> {
    if (this.#options.store().templates.get({ id: templateId })?.owner === SERVER) return;
    this.#announced.add(buildId);
    for (let attempt = 1; ; attempt += 1) {
      try {
        await this.changed(templateId);
        return;
      } catch (error) {
        if (attempt === ATTEMPTS) throw error;
        await sleep(PAUSE_MS, undefined, { signal: this.#stopping.signal });
      }
    }
  }

  /** Tells the others what a template has become, if they know it. @throws SandboxError when they cannot be told */
  async changed(templateId: string): Promise<void> {
    await this.#tell(templateId, (known) => known?.value !== undefined);
  }

  /** Tells the others of a removal, before it happens. @throws SandboxError when they cannot be told */
  async removed(templateId: string): Promise<void> {
    const { records } = this.#options.shared;
    await this.#telling.run(async () => {
      const known = await records?.read(templateId);
      if (known?.value !== undefined) await records?.put(templateId, undefined, known);
    });
  }

  /** Lets the other servers make sandboxes of a snapshot, until it is disposed of. @throws SandboxError */
  async lend(snapshot: SnapshotRecord, signal: AbortSignal): Promise<AsyncDisposable> {
    const { shared } = this.#options;
    const { id, owner, template, backend, build, limits: own } = snapshot;
    const digest = await this.#send(owner, { snapshot: id }, `${id}:snapshot`, signal);
    const buildId = randomUUID();
    const { cpuCount = 1, memoryMiB = LEAST_MEMORY_MIB, diskMiB } = { ...build?.limits, ...own };
    const value = sharedText({
      store: this.#storeId(),
      snapshotOf: template,
      owner,
      namespace: namespaceOf(owner),
      alias: id,
      isPublic: false,
      createdAtMs: snapshot.takenAtMs,
      tags: { default: buildId },
      builds: { [buildId]: { digest, backend, limits: { cpuCount, memoryMiB, diskMiB } } },
    });
    this.#lent.add(id);
    const takeBack = async (): Promise<void> => {
      this.#lent.delete(id);
      // Where it fails, the next look removes it.
      await this.removed(id).catch(() => {});
    };
    try {
      await shared.records?.put(id, value, undefined);
    } catch (error) {
      // It may be there all the same.
      await takeBack();
      throw error;
    }
    return { [Symbol.asyncDispose]: takeBack };
  }

  /** Shares what is new soon, without waiting for it. */
  soon(): void {
    this.#arm(0);
  }

  #arm(afterMs: number): void {
    const { clock, intervalMs } = this.#options;
    this.#disarm();
    if (this.#stopping.signal.aborted) return;
    this.#disarm = clock.after(afterMs, () => {
      this.#arm(intervalMs);
      // While a registry is silent, looks must not pile up.
      if (this.#isWaiting) return;
      this.#isWaiting = true;
      this.#running = this.#running.then(() => {
        this.#isWaiting = false;
        return this.#run();
      });
    });
  }

  /** Brings the others' knowledge, this server's templates and its copies into agreement. Never rejects. */
  async #run(): Promise<void> {
    const { shared, store, copies, keeper, log } = this.#options;
    const { records } = shared;
    if (records === undefined || this.#stopping.signal.aborted) return;
    const attempt = async (id: string, work: () => Promise<void>): Promise<void> => {
      try {
        await work();
      } catch (error) {
        if (!this.#stopping.signal.aborted)
          log.warn(
            { template: id, err: error },
            "a template was not shared with the other servers; it is tried again",
          );
      }
    };
    for (const template of store().templates.all()) {
      const { id, owner } = template;
      if (owner !== SERVER) await attempt(id, () => this.#share(template, records));
    }
    for (const [id, known, record] of this.#catalog.records())
      if (!store().templates.has({ id }) && known.keeper !== "other")
        await attempt(id, () => this.#takeOver(id, known, record));
    // A snapshot of a sandbox takes its image, too.
    const needed = new Set(this.#options.buildsInUse());
    for (const [, , { builds }] of this.#catalog.records())
      for (const id of Object.keys(builds)) needed.add(id);
    copies.retain(needed);
    this.#catalog.prune();
    for (const id of this.#announced)
      if (store().builds.get({ id })?.state !== "building") this.#announced.delete(id);
    for (const id of this.#unshareable) if (!store().builds.has({ id })) this.#unshareable.delete(id);
    await keeper.sweep();
  }

  async #share(template: TemplateRecord, records: TemplateRecords): Promise<void> {
    const { store, clock, log } = this.#options;
    const { id } = template;
    // What the watch tells may be late, and this one's own is removed by it.
    if (isElsewhere(records.get(id)) && isElsewhere(await records.read(id))) {
      log.warn({ template: id }, "another server of the fleet has taken a template over, or removed it");
      store().atOnce(() => {
        store().copyBuildsOf(id, clock.now());
        store().templates.remove({ id });
      });
      return;
    }
    for (const { buildId } of store().tags.list(id)) {
      if (this.#stopping.signal.aborted) return;
      if (store().builds.get({ id: buildId })?.digest === undefined) await this.#push(template, buildId);
    }
    const now = store().templates.get({ id });
    const known = records.get(id);
    const isTold = now !== undefined && known?.keeper === "self" && known.value === this.#textOf(now);
    if (!isTold) await this.#tell(id, () => true);
  }

  async #push({ id, owner }: TemplateRecord, buildId: string): Promise<void> {
    const { store, log } = this.#options;
    if (this.#unshareable.has(buildId)) return;
    try {
      const name = `${id}:${buildId}`;
      const digest = await this.#send(owner, { template: name }, name);
      store().builds.update({ id: buildId }, { digest });
    } catch (error) {
      if (!(error instanceof SandboxError && UNSHAREABLE.has(error.reason))) throw error;
      // Another attempt would pack as many bytes in vain, at the cost of all tenants' templates.
      this.#unshareable.add(buildId);
      log.warn(
        { template: id, build: buildId, err: error },
        "a build cannot be shared with the other servers",
      );
    }
  }

  /** Pushes to the registry under a name. @returns the digest */
  async #send(
    tenant: string,
    source: WantedPush["source"],
    name: string,
    signal?: AbortSignal,
  ): Promise<string> {
    const { pushes, registry, credentials } = this.#options;
    const push = pushes.prepare({
      tenant,
      source,
      target: { reference: `${registry}/${name}`, credentials },
    });
    const stopping = this.#stopping.signal;
    return push.run(() => {}, signal === undefined ? stopping : AbortSignal.any([signal, stopping]));
  }

  /** Tells the others of a template as it is, where they know of it what `applies` wants. In turn: no call is in the way of another. */
  async #tell(id: string, applies: (known: SharedTemplate | undefined) => boolean): Promise<void> {
    const { shared, store } = this.#options;
    await this.#telling.run(async () => {
      const known = await shared.records?.read(id);
      const template = store().templates.get({ id });
      if (template === undefined || !applies(known)) return;
      const value = this.#textOf(template);
      const isTold = known?.keeper === "self" && known.value === value;
      if (!isTold) await shared.records?.put(id, value, known);
    });
  }

  #textOf(template: TemplateRecord): string {
    const { store } = this.#options;
    const { owner, namespace, alias, isPublic, createdAtMs, id } = template;
    const moving = new Set<string>();
    for (const { id: buildId } of store().builds.unfinished(id))
      if (this.#announced.has(buildId))
        for (const { name } of store().tags.all({ buildId })) moving.add(name);
    const tags: Record<string, string> = {};
    const builds: Record<string, SharedRecord["builds"][string]> = {};
    for (const { name, buildId } of store().tags.list(id)) {
      const build = store().builds.get({ id: buildId });
      if (build === undefined || moving.has(name)) continue;
      const { digest, backend, limits } = build;
      tags[name] = buildId;
      builds[buildId] = { digest, backend, limits };
    }
    return sharedText({
      store: this.#storeId(),
      owner,
      namespace,
      alias,
      isPublic,
      createdAtMs,
      tags,
      builds,
    });
  }

  /** Keeps a template from now on whose server is gone, or had another data directory. */
  async #takeOver(id: string, known: SharedTemplate, record: SharedRecord): Promise<void> {
    const { shared, store, clock, log } = this.#options;
    if (this.#lent.has(id)) return;
    // Lent by a server that has ended, or an earlier one here.
    const isLeft = record.snapshotOf !== undefined;
    if (isLeft || (known.keeper === "self" && record.store === this.#storeId())) {
      // Removed by a verb, which does not speak to the others.
      await shared.records?.put(id, undefined, known);
      return;
    }
    const { owner, alias } = record;
    // What was not pushed is lost with its server.
    const builds = Object.entries(record.builds).filter(([, { digest }]) => digest !== undefined);
    const tags = Object.entries(record.tags).filter(
      ([, buildId]) => record.builds[buildId]?.digest !== undefined,
    );
    if (store().templates.has({ owner, alias })) return;
    await shared.records?.put(id, sharedText({ ...record, store: this.#storeId() }), known);
    store().atOnce(() => {
      const { templates, builds: built, tags: assigned } = store();
      const nowMs = clock.now();
      const { namespace, isPublic, createdAtMs } = record;
      const known = { id, owner, namespace, alias, isPublic, createdAtMs };
      templates.insert({ ...known, updatedAtMs: createdAtMs });
      const ready = { state: "ready", createdAtMs: nowMs, updatedAtMs: nowMs, finishedAtMs: nowMs } as const;
      for (const [buildId, { digest, backend, limits }] of builds)
        built.insert({ id: buildId, templateId: id, backend, limits, digest, ...ready });
      for (const [tag, buildId] of tags) assigned.assign(id, tag, buildId, nowMs);
    });
    log.info({ template: id }, "this server keeps a template from now on, whose server is gone");
  }

  #storeId(): string {
    return Buffer.from(this.#options.store().secret("sharing")).toString("hex");
  }
}

/** True for a template that another server keeps, or has removed. */
function isElsewhere(known: SharedTemplate | undefined): boolean {
  return known?.keeper === "other" || (known?.keeper === "gone" && known.value === undefined);
}

async function untilAborted(work: Promise<void>, signal: AbortSignal | undefined): Promise<void> {
  if (signal === undefined) return work;
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const abort = (): void => reject(signal.reason as Error);
  signal.addEventListener("abort", abort, { once: true });
  if (signal.aborted) abort();
  try {
    await Promise.race([work, aborted]);
  } finally {
    signal.removeEventListener("abort", abort);
    // Others may wait for it, too.
    work.catch(() => {});
  }
}
