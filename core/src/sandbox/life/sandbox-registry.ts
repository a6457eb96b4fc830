import { AsyncResource } from "node:async_hooks";
import { SandboxError } from "../../kernel/errors.js";
import type { Limits, Sandbox, SandboxBackend, SandboxId, VolumeId } from "../contract/backend.js";
import {
  checkNetworkPolicy,
  egressRulesOf,
  type NetworkPolicy,
  requireNetworking,
} from "../contract/egress-rules.js";
import { Terminator } from "./terminator.js";
import { HeldSandbox } from "../backends/held-sandbox.js";
import type { EndedSandbox, LedgerEntry } from "../ledger/ledger.js";
import type { EndReason } from "../model/describe-end.js";
import type { LiveSandbox, SandboxRecord } from "../model/live-sandbox.js";
import { CreationQueue } from "./creation-queue.js";
import { Pauses, transitioning } from "./pauses.js";
import { checkReadinessProbe } from "../model/readiness-probe.js";
import { Reaper } from "./reaper.js";
import { checkRequestedLimits, type LimitsChange } from "../model/limits.js";
import { Resizes } from "./resizes.js";
import type { Admission, CountedSandbox } from "../model/admissions.js";
import { newAccessToken, newId } from "../../kernel/secrets.js";
import type { SandboxServices } from "../ledger/sandbox-services.js";
import type { SnapshotRecord, Snapshots } from "../model/snapshots.js";
import {
  type CreateSandbox,
  type PauseOptions,
  type Sandboxes,
  type TenantOptions,
  type Placements,
  tenantSandboxes,
} from "./sandboxes.js";
import type { SandboxesConfig } from "../model/sandboxes-config.js";
import type { RemoteTemplate, TemplateFacts, Templates } from "../templates/templates.js";
import { DEFAULT_TENANT } from "../model/tenant-records.js";
import { UnknownSandbox } from "../contract/sandbox-id.js";
import { resolveMounts } from "../model/volume-mounts.js";
import type { VolumeRegistry } from "../volumes/volume-registry.js";
import type { AddedStartups } from "./startups.js";
import type { AddedWarmUps } from "../warm/warm-ups.js";
import type { WarmPools } from "../warm/warm-pool.js";

export interface SandboxRegistryOptions extends SandboxServices {
  /** Called before every creation. */
  readonly admissions: readonly Admission[];
  readonly snapshots: Snapshots;
  readonly templates: Templates;
  readonly volumes: Pick<VolumeRegistry, "of" | "released">;
  readonly warmUps: AddedWarmUps;
  readonly startups: AddedStartups;
  readonly pools: WarmPools;
  readonly placement: Placements;
}

const SANDBOX_ID = /^[a-z0-9]+$/;
const MAX_ID = 63;
const HOUR_MS = 3_600_000;

/** The sandboxes of this server, held in memory and written to the ledger before a backend acts. */
export class SandboxRegistry implements Sandboxes {
  readonly #options: SandboxRegistryOptions;
  readonly #held = new Map<SandboxId, HeldSandbox>();
  /** Limits of its template when a sandbox of a pool was made. */
  readonly #warmLimits = new WeakMap<HeldSandbox, Limits>();
  readonly #reaper: Reaper;
  readonly #terminator: Terminator;
  readonly #creations: CreationQueue;
  readonly #pauses: Pauses;
  readonly #resizes: Resizes;
  readonly #listeners: ((sandbox: LiveSandbox) => void)[] = [];

  constructor(options: SandboxRegistryOptions) {
    this.#options = options;
    this.#reaper = new Reaper(options.clock, (id) => this.#expire(id));
    const shared = { ...options, reaper: this.#reaper };
    this.#terminator = new Terminator({ ...shared, onGone: (id) => this.#held.delete(id) });
    this.#creations = new CreationQueue({
      ...shared,
      terminator: this.#terminator,
      admissionOf: (record) => this.#admissionOf(record),
      onMade: (sandbox) => {
        for (const listener of this.#listeners) listener(sandbox);
      },
    });
    this.#pauses = new Pauses({
      ...shared,
      onSucceeded: (held) => {
        this.#held.set(held.record.id, held);
        this.#terminator.watch(held, held.handle);
      },
    });
    this.#resizes = new Resizes({
      ...options,
      admit: (wanted) => {
        for (const take of this.#askAdmissions(wanted)) take();
      },
      admissionOf: (record) => this.#admissionOf(record),
    });
    this.#addPools();
  }

  get defaultTimeoutMs(): number {
    return this.#options.settings.defaultTimeout;
  }

  of(tenant: string, { mayPlace = false }: TenantOptions = {}): Sandboxes {
    const { placement } = this.#options;
    const ownerOf = (id: SandboxId): string | undefined => this.#held.get(id)?.record.owner;
    return tenantSandboxes(this, tenant, ownerOf, mayPlace ? placement : undefined);
  }

  /** All sandboxes that are not completely removed. */
  held(): readonly HeldSandbox[] {
    return [...this.#held.values()];
  }

  /** True when a sandbox that is not completely removed has a volume. */
  isMounted(id: VolumeId): boolean {
    return [...this.#held.values()].some(({ record }) => record.mounts.some(({ volume }) => volume === id));
  }

  async create(request: CreateSandbox, signal?: AbortSignal): Promise<LiveSandbox> {
    let wanted = this.#wanted(request);
    const { remote } = wanted.template;
    if (remote !== undefined) {
      await remote.fetch(signal);
      wanted = this.#wanted(request);
    }
    const { record, template, backend, snapshot } = wanted;
    this.#admit(record);
    const mayBeWarm = snapshot === undefined && remote === undefined;
    const warm = mayBeWarm ? this.#takeWarm(request, template, backend) : undefined;
    if (warm !== undefined) {
      warm.warm({ ...record, id: warm.record.id, state: "running" }, warm.runtime);
      // Its template's probe succeeded when it became warm.
      const making = { timeoutMs: request.timeoutMs, probe: request.readinessProbe, signal };
      const handedOut = await this.#creations.handOut(warm, making);
      if (handedOut !== undefined) return handedOut;
      this.#admit(record);
    }
    const held = new HeldSandbox(record);
    // Set before the first await: this keeps parallel creations below the maximum.
    this.#held.set(record.id, held);
    const probe = request.readinessProbe ?? template.readinessProbe;
    using _yielding = this.#options.pools.yieldToCreator();
    return await this.#creations.make(held, backend, { timeoutMs: request.timeoutMs, probe, signal });
  }

  /** @throws SandboxError for what cannot be created as requested. */
  #wanted(request: CreateSandbox) {
    if (this.#creations.isClosed) throw new SandboxError("server_stopping", "the server is stopping");
    const { settings, snapshots } = this.#options;
    const snapshot = snapshots.of(request.owner ?? DEFAULT_TENANT).find(request.template);
    const template = this.#templateOf(request, snapshot);
    if (request.timeoutMs !== undefined) this.checkTimeout(request.timeoutMs);
    if (request.autoResume === true && request.onTimeout !== "pause") {
      throw new SandboxError("lifecycle_invalid", "autoResume only applies when onTimeout is pause.");
    }
    if (request.autoResume === true && request.keepsMemory === false) {
      const text =
        "autoPauseMemory=false (filesystem-only auto-pause) cannot be combined with autoResume: such a snapshot cannot be auto-resumed by traffic and must be resumed explicitly.";
      throw new SandboxError("lifecycle_invalid", text);
    }
    checkNetworkPolicy(networkPolicyOf(request));
    checkRequestedLimits(request.limits ?? {}, {
      settings,
      template: template.name,
      templateLimits: template.limits,
    });
    if (request.readinessProbe !== undefined) checkReadinessProbe(request.readinessProbe, settings.readiness);
    const backend = this.#backendOf(request, template, snapshot);
    if (request.id !== undefined) this.#checkId(request.id);
    const record = this.#recordOf(request, template, backend, snapshot);
    return { record, template, backend, snapshot };
  }

  check(request: CreateSandbox): RemoteTemplate | undefined {
    const { record, template } = this.#wanted(request);
    this.#checkAdmissions(record);
    return template.remote;
  }

  checkTimeout(timeoutMs: number): void {
    checkNumber(timeoutMs);
    if (timeoutMs <= 0) throw new SandboxError("timeout_invalid", "Timeout must be greater than 0");
    this.#checkLongest(timeoutMs);
  }

  find(id: SandboxId): LiveSandbox | undefined {
    const held = this.#held.get(id);
    return held === undefined || held.isEnding ? undefined : held;
  }

  get(id: SandboxId): HeldSandbox {
    const held = this.#held.get(id);
    if (held === undefined || held.isEnding) throw new UnknownSandbox(id);
    return held;
  }

  onCreated(listener: (sandbox: LiveSandbox) => void): void {
    // Work of the listener belongs to the plugin that registers it, not to the creator of a sandbox.
    this.#listeners.push(AsyncResource.bind(listener));
  }

  async remembers(id: SandboxId): Promise<boolean> {
    return this.#held.has(id) || (await this.endOf(id)) !== undefined;
  }

  async endOf(id: SandboxId): Promise<EndedSandbox | undefined> {
    const held = this.#held.get(id);
    if (held?.isEnding === true && held.hasServed) return this.#terminator.endedAs(held);
    // Also for one that is there: another tenant is refused after as long as for one that never was.
    return this.#options.ledger.findEnded(id);
  }

  list(): readonly LiveSandbox[] {
    return [...this.#held.values()]
      .filter((held) => !held.isEnding)
      .toSorted(
        (a, b) => b.record.startedAtMs - a.record.startedAtMs || (a.record.id < b.record.id ? -1 : 1),
      );
  }

  async kill(id: SandboxId, reason: EndReason = "killed"): Promise<void> {
    const held = this.#held.get(id);
    if (held === undefined || held.isLingering) throw new UnknownSandbox(id);
    await this.#terminator.end(held, reason);
  }

  async setTimeout(id: SandboxId, timeoutMs: number): Promise<void> {
    const held = this.#getRunning(id);
    checkNumber(timeoutMs);
    if (timeoutMs > this.#options.settings.maximumTimeout) {
      throw new SandboxError("timeout_invalid", "Max instance length exceeded");
    }
    if (timeoutMs <= 0) await this.#timeOut(held);
    else await this.#moveEnd(held, this.#options.clock.now() + timeoutMs);
  }

  async extend(id: SandboxId, timeoutMs: number): Promise<void> {
    const held = this.#getRunning(id);
    checkNumber(timeoutMs);
    this.#checkLongest(timeoutMs);
    const endsAtMs = this.#options.clock.now() + timeoutMs;
    const isLater = held.record.endsAtMs !== undefined && endsAtMs > held.record.endsAtMs;
    if (isLater) await this.#moveEnd(held, endsAtMs);
  }

  async pause(id: SandboxId, { keepsMemory }: PauseOptions = {}): Promise<void> {
    await this.#pauses.pause(this.#getUnlessKilled(id), "request", keepsMemory);
  }

  async resume(
    id: SandboxId,
    timeoutMs: number | undefined,
    { keepsMemory }: PauseOptions = {},
  ): Promise<boolean> {
    const held = this.#getUnlessKilled(id);
    if (timeoutMs !== undefined) this.checkTimeout(timeoutMs);
    return this.#pauses.resume(held, { timeoutMs, trigger: "request", keepsMemory });
  }

  async use(sandbox: LiveSandbox): Promise<() => void> {
    const held = this.#held.get(sandbox.record.id);
    if (held === undefined) throw new UnknownSandbox(sandbox.record.id);
    // Found just before its successor replaced it.
    if (held !== sandbox) throw transitioning();
    return this.#pauses.use(held);
  }

  async setNetworkPolicy(id: SandboxId, policy: NetworkPolicy): Promise<void> {
    checkNetworkPolicy(policy);
    const held = this.get(id);
    await held.turns.run(() => this.#applyNetworkPolicy(held, policy));
  }

  async setLimits(id: SandboxId, change: LimitsChange): Promise<void> {
    await this.#resizes.resize(this.get(id), change);
  }

  /** Adopts a sandbox that outlived the last server in the state of its record. */
  async adopt({ record, awaited }: LedgerEntry, runtime: Sandbox): Promise<void> {
    const held = new HeldSandbox(await this.#resizes.restore(record, runtime), runtime);
    await this.#pauses.restore(held, awaited);
    this.#held.set(record.id, held);
    this.#reaper.set(record.id, held.record.endsAtMs);
    this.#terminator.watch(held, runtime);
  }

  /**
   * Ends a sandbox that outlived the last server and is no longer wanted. @param reason undefined for one that never
   * served: it leaves no record.
   */
  finish(record: SandboxRecord, runtime: Sandbox, reason: EndReason | undefined): Promise<void> {
    const held = new HeldSandbox(record, runtime);
    held.hasServed = reason !== undefined;
    held.end(reason ?? "killed");
    this.#held.set(record.id, held);
    held.ending = this.#terminator.tearDown(held, runtime);
    return held.ending;
  }

  /** Records that nothing is left of a sandbox of the last server. */
  async forget(record: SandboxRecord, reason: EndReason | undefined): Promise<void> {
    const held = new HeldSandbox(record);
    held.hasServed = reason !== undefined;
    held.end(reason ?? "killed");
    await this.#terminator.recordEnd(held);
  }

  start(): void {
    this.#reaper.start();
  }

  /** Refuses new sandboxes from now on. */
  refuseNew(): void {
    this.#creations.isClosed = true;
  }

  /**
   * Refuses new sandboxes, aborts creations, and ends the others unless they are to be kept. Resolves when the backends
   * are done, or failed for now.
   */
  async close(onShutdown: SandboxesConfig["onShutdown"]): Promise<void> {
    this.refuseNew();
    this.#reaper.stop();
    const emptied = this.#options.pools.close();
    const leaving = [...this.#held.values()].filter(
      (held) => onShutdown === "destroy" || held.record.state === "creating" || held.isEnding,
    );
    await Promise.allSettled([emptied, ...leaving.map((held) => this.#terminator.end(held, "shutdown"))]);
  }

  /** @throws SandboxError aborted while it is being killed. */
  #getUnlessKilled(id: SandboxId): HeldSandbox {
    const held = this.#held.get(id);
    if (held?.isLingering === false) held.throwIfEnding();
    return this.get(id);
  }

  /** @throws SandboxError not_found for a paused one, too, as E2B's clients expect. */
  #getRunning(id: SandboxId): HeldSandbox {
    const held = this.get(id);
    if (held.record.state === "paused") {
      throw new SandboxError("sandbox_paused", `Sandbox "${id}" is not running: it is paused`);
    }
    return held;
  }

  #templateOf({ template, owner }: CreateSandbox, snapshot: SnapshotRecord | undefined): TemplateFacts {
    const { templates, settings } = this.#options;
    if (snapshot === undefined) return templates.find(template, owner);
    const { template: name, build, limits, backend } = snapshot;
    // It may outlive a template that was built.
    if (build !== undefined && !Object.hasOwn(settings.templates, name))
      return { name, aliases: [], build, limits, backend };
    return { ...templates.find(name), build };
  }

  /** Limits that a template itself sets; the backend completes those of a configured one. */
  #limitsOf({ name, limits }: TemplateFacts): Limits {
    return this.#options.settings.templates[name]?.limits ?? limits;
  }

  #backendOf(
    request: CreateSandbox,
    template: TemplateFacts,
    snapshot: SnapshotRecord | undefined,
  ): SandboxBackend {
    const { backends } = this.#options;
    const name = snapshot?.backend ?? request.backend ?? template.backend;
    return name === undefined ? backends.default() : backends.get(name);
  }

  #recordOf(
    request: CreateSandbox,
    template: TemplateFacts,
    backend: SandboxBackend,
    snapshot?: SnapshotRecord,
  ): SandboxRecord {
    const owner = request.owner ?? DEFAULT_TENANT;
    return {
      id: request.id ?? newId("sandbox"),
      owner,
      backend: backend.name,
      template: template.name,
      ...(template.build && { build: template.build }),
      ...(snapshot?.isTemporary === true
        ? { snapshot: request.snapshot, base: snapshot.id }
        : { snapshot: snapshot?.id }),
      state: "creating",
      startedAtMs: this.#options.clock.now(),
      endsAtMs: undefined,
      timeoutMs: request.timeoutMs,
      onTimeout: request.onTimeout ?? "kill",
      ...(request.keepsMemory === false && { keepsMemory: false }),
      autoResume: request.autoResume ?? false,
      metadata: { ...request.metadata },
      environment: { ...request.environment },
      accessToken: request.secure ? newAccessToken() : undefined,
      trafficAccessToken: request.allowPublicTraffic === false ? newAccessToken() : undefined,
      maskRequestHost: request.maskRequestHost,
      ...(request.idempotency && { idempotency: request.idempotency }),
      limits: { ...this.#limitsOf(template), ...snapshot?.limits, ...given(request.limits ?? {}) },
      ...networkPolicyOf(request),
      mounts: resolveMounts(request.mounts ?? [], this.#options.volumes.of(owner), backend.name),
    };
  }

  /** @throws SandboxError resource_exhausted at the server's maximum, or the error of the first check that refuses. */
  #admit(wanted: SandboxRecord): void {
    for (const take of this.#checkAdmissions(wanted)) take();
  }

  /** @returns what the admission takes. @throws as `#admit` */
  #checkAdmissions(wanted: SandboxRecord): readonly (() => void)[] {
    const { settings, tenants } = this.#options;
    const own = [...this.#held.values()].filter(({ record }) => record.owner === wanted.owner).length;
    const used = this.#held.size;
    const refusal = tenants.refusal({ tenant: wanted.owner, most: settings.maximum, used, own });
    if (refusal !== undefined) {
      const text = `you have reached the maximum number of concurrent E2B sandboxes (${refusal}). If you need more, ask the operator of this server`;
      throw new SandboxError("sandbox_limit_reached", text);
    }
    return this.#askAdmissions(wanted);
  }

  #askAdmissions(wanted: SandboxRecord): readonly (() => void)[] {
    // A removal that only the server still has to complete does not count for its owner.
    const existing = [...this.#held.values()]
      .filter(({ record, isLingering }) => record.owner === wanted.owner && !isLingering)
      .map(({ record }) => record)
      .filter(({ id }) => id !== wanted.id);
    return this.#options.admissions.flatMap(({ check }) => check(wanted, existing) ?? []);
  }

  /** The admissions of a sandbox beside its owner's on all servers; undefined when none counts those. */
  #admissionOf(wanted: SandboxRecord): ((others: readonly CountedSandbox[]) => void) | undefined {
    const counting = this.#options.admissions.filter((admission) => admission.counts(wanted.owner));
    if (counting.length === 0) return undefined;
    return (others) => {
      for (const { check } of counting) check(wanted, others);
    };
  }

  #addPools(): void {
    const { settings, pools, clock, log } = this.#options;
    for (const [name, { pool }] of Object.entries(settings.templates)) {
      if (pool.min === 0 && pool.max === undefined) continue;
      pools.add(name, {
        settings: pool,
        make: (signal) => this.#makeWarm(name, signal),
        // A failure is already logged and counted, and tried again.
        discard: (held) => this.#terminator.end(held, "killed").catch(() => {}),
        clock,
        log: log.child({ template: name }),
      });
    }
  }

  /**
   * A warm sandbox of the template's pool, if it matches the request. All other options are set when it is handed out.
   */
  #takeWarm(
    request: CreateSandbox,
    template: TemplateFacts,
    backend: SandboxBackend,
  ): HeldSandbox | undefined {
    const own = this.#limitsOf(template);
    const limits = Object.entries(given(request.limits ?? {}));
    // The start command of a pooled one has run without a creator's variables.
    const takesVariables =
      template.build?.start !== undefined && Object.keys(request.environment ?? {}).length > 0;
    const isPooled =
      request.id === undefined &&
      !takesVariables &&
      request.allowInternetAccess !== false &&
      request.egress === undefined &&
      (request.mounts ?? []).length === 0 &&
      backend === this.#backendOf({ ...request, backend: undefined }, template, undefined) &&
      limits.every(([name, value]) => own[name as keyof Limits] === value);
    if (!isPooled) return undefined;
    const warm = this.#options.pools.take(template.name);
    if (warm === undefined) return undefined;
    this.#held.set(warm.record.id, warm);
    const isCurrent = warm.record.build?.id === template.build?.id && this.#warmLimits.get(warm) === own;
    if (isCurrent) return warm;
    // Made from an earlier build, or before a reload changed its limits. A failure is logged and tried again.
    this.#terminator.end(warm, "killed").catch(() => {});
    return undefined;
  }

  async #makeWarm(name: string, signal: AbortSignal): Promise<HeldSandbox> {
    const request = { template: name, timeoutMs: undefined, secure: false };
    const template = this.#options.templates.find(name);
    const backend = this.#backendOf(request, template, undefined);
    const held = new HeldSandbox(this.#recordOf(request, template, backend));
    this.#warmLimits.set(held, this.#limitsOf(template));
    return this.#creations.warm(held, backend, { probe: template.readinessProbe, signal });
  }

  #checkId(id: SandboxId): void {
    if (!SANDBOX_ID.test(id) || id.length > MAX_ID) {
      throw new SandboxError("sandbox_id_invalid", "Invalid sandbox ID");
    }
    if (this.#held.has(id)) throw new SandboxError("sandbox_exists", `sandbox "${id}" already exists`);
  }

  #checkLongest(timeoutMs: number): void {
    const { maximumTimeout } = this.#options.settings;
    if (timeoutMs <= maximumTimeout) return;
    const text = `Timeout cannot be greater than ${maximumTimeout / HOUR_MS} hours`;
    throw new SandboxError("timeout_invalid", text);
  }

  async #applyNetworkPolicy(held: HeldSandbox, policy: NetworkPolicy): Promise<void> {
    const { ledger, events } = this.#options;
    const { id, state, backend } = this.get(held.record.id).record;
    if (state !== "running")
      throw new SandboxError("sandbox_state_conflict", `sandbox "${id}" is not running`);
    const networking = requireNetworking(held.runtime, backend);
    const { allowInternetAccess, egress } = held.record;
    const { allowOut, denyOut } = policy.egress ?? { allowOut: [], denyOut: [] };
    const network = { allowInternetAccess: policy.allowInternetAccess, allowOut, denyOut };
    const event = events.of("updated", held.record, { network });
    held.update(policy);
    try {
      // Before the backend acts: the next server completes an interrupted change.
      await ledger.write(held.record, { awaited: event });
      await networking.restrict(egressRulesOf(policy));
    } catch (error) {
      // A written end must not be overwritten.
      if (held.isEnding) throw new UnknownSandbox(id);
      held.update({ allowInternetAccess, egress });
      await ledger.write(held.record, { withdrawn: event?.id });
      throw error;
    }
    await events.confirm(event);
  }

  async #moveEnd(held: HeldSandbox, endsAtMs: number): Promise<void> {
    if (held.record.state === "creating") {
      throw new SandboxError("sandbox_not_running", `sandbox "${held.record.id}" is not running`);
    }
    // Memory is updated before the first await, so that two simultaneous calls see each other's change.
    held.update({ endsAtMs });
    this.#reaper.set(held.record.id, endsAtMs);
    const { ledger, events } = this.#options;
    await ledger.write(held.record, { happened: events.of("updated", held.record, { endsAtMs }) });
    events.wake();
  }

  #expire(id: SandboxId): void {
    const held = this.#held.get(id);
    if (held === undefined) return;
    // A failure is already logged and counted, and tried again.
    const isUp = held.record.state === "running" && held.record.onTimeout === "pause";
    (isUp ? this.#pauses.expire(held) : this.#terminator.end(held, "timed out")).catch(() => {});
  }

  /** Applies the time-out action to a running sandbox in the background. */
  async #timeOut(held: HeldSandbox): Promise<void> {
    if (held.record.onTimeout === "pause") await this.#pauses.pause(held, "timeout", held.record.keepsMemory);
    else await this.#terminator.end(held, "timed out");
  }
}

function networkPolicyOf({ allowInternetAccess = true, egress }: CreateSandbox): NetworkPolicy {
  return { allowInternetAccess, egress };
}

function checkNumber(timeoutMs: number): void {
  if (!Number.isFinite(timeoutMs)) throw new SandboxError("timeout_invalid", "Timeout must be a number");
}

function given<T extends object>(options: T): Partial<T> {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as Partial<T>;
}
