import { createToken, type Slot } from "../../kernel/token.js";
import type { Limits, SandboxId, SnapshotId } from "../contract/backend.js";
import type { EgressRules, NetworkPolicy } from "../contract/egress-rules.js";
import type { EndedSandbox } from "../ledger/ledger.js";
import type { EndReason } from "../model/describe-end.js";
import type { Idempotency, LiveSandbox, OnTimeout, SandboxRecord } from "../model/live-sandbox.js";
import type { ReadinessProbe } from "../model/readiness-probe.js";
import type { LimitsChange } from "../model/limits.js";
import type { RequestedMount } from "../model/volume-mounts.js";
import type { RemoteTemplate } from "../templates/templates.js";
import { UnknownSandbox } from "../contract/sandbox-id.js";

/** What a client asks of a new sandbox. */
export interface CreateSandbox {
  /** Tenant of the sandbox; `default` when absent. */
  readonly owner?: string | undefined;
  /** A configured template; the message of a refusal is E2B's. */
  readonly template: string;
  /** Of a fork, whose `template` is a temporary snapshot: the snapshot that its original began with. */
  readonly snapshot?: SnapshotId | undefined;
  /** Life in milliseconds; undefined = until killed. */
  readonly timeoutMs: number | undefined;
  /** `kill` when absent. */
  readonly onTimeout?: OnTimeout | undefined;
  /** False: a pause at its end ends its processes and keeps its files. True when absent. */
  readonly keepsMemory?: boolean | undefined;
  /** Requests resume it when it is paused; only with `onTimeout: "pause"`. False when absent. */
  readonly autoResume?: boolean | undefined;
  readonly metadata?: Readonly<Record<string, string>> | undefined;
  readonly environment?: Readonly<Record<string, string>> | undefined;
  /** Generates an access token. */
  readonly secure: boolean;
  /** False: generates a traffic access token, which all ports but envd's require. True when absent. */
  readonly allowPublicTraffic?: boolean | undefined;
  /** The Host header for programs on its ports, with `${PORT}` for the port. */
  readonly maskRequestHost?: string | undefined;
  readonly limits?: Limits | undefined;
  /** Stored in the sandbox's record, to recognise a repeated request. */
  readonly idempotency?: Idempotency | undefined;
  readonly allowInternetAccess?: boolean | undefined;
  /** Rules for outgoing connections; none when absent. */
  readonly egress?: EgressRules | undefined;
  /** Volumes of the owner to mount; none when absent. */
  readonly mounts?: readonly RequestedMount[] | undefined;
  /** Probe that has to succeed before the creation does; the template's when absent. */
  readonly readinessProbe?: ReadinessProbe | undefined;
  /** Backend to use instead of the server's default. */
  readonly backend?: string | undefined;
  /** A fixed id (the debug sandbox); a random one when absent. */
  readonly id?: SandboxId | undefined;
}

export interface PauseOptions {
  /**
   * False: a pause ends the processes and keeps the files, and a resumption, also of a sandbox paused with its
   * processes, starts it again as another LiveSandbox. True when absent.
   */
  readonly keepsMemory?: boolean | undefined;
}

export interface TenantOptions {
  /** True: another server may be chosen for a new one, and `create` throws CreatedElsewhere then. False when absent. */
  readonly mayPlace?: boolean;
}

/** The sandboxes of this server: the one place that creates, finds and ends them. */
export interface Sandboxes {
  /** Life of a sandbox whose creator names no time-out, in milliseconds; request handlers apply it. */
  readonly defaultTimeoutMs: number;
  /**
   * The sandboxes of one tenant alone; those of others are unknown to it. A request handler uses those of its sender:
   * `sandboxesOf`.
   */
  of(tenant: string, options?: TenantOptions): Sandboxes;
  /**
   * Creates a sandbox; when it rejects, nothing is left of it.
   * @throws SandboxError not_found (template), resource_exhausted (`sandboxes.maximum` or a quota reached),
   * invalid_argument (time-out, id, limits above a client's maximum, invalid or unsupported network rules, unknown
   * volumes or impossible mount paths), failed_precondition (its backend cannot pause as requested), already_exists (a
   * fixed id), unavailable (too many creations, not ready in time, or the server is stopping), canceled (`signal`),
   * deadline_exceeded, or the backend's error.
   */
  create(request: CreateSandbox, signal?: AbortSignal): Promise<LiveSandbox>;
  /**
   * Checks whether `create` could begin now. @returns the template, if another server keeps it: `create` fetches it.
   * @throws SandboxError as `create` would at once.
   */
  check(request: CreateSandbox): RemoteTemplate | undefined;
  /** Checks a time-out for `create` and `resume`, of any sandbox. @throws SandboxError as they would. */
  checkTimeout(timeoutMs: number): void;
  /** The sandbox if it serves or is being created; undefined also while it is being killed. */
  find(id: SandboxId): LiveSandbox | undefined;
  /** @throws SandboxError not_found with E2B's text and the phrase that the Ruby client looks for. */
  get(id: SandboxId): LiveSandbox;
  /** Calls the listener for each new sandbox as soon as it runs, before its creator gets the answer. */
  onCreated(listener: (sandbox: LiveSandbox) => void): void;
  /** True while something of it is left, and for one whose end is recorded (`sandboxes.endedKept`). */
  remembers(id: SandboxId): Promise<boolean>;
  /** How a sandbox ended, or is ending; undefined for other sandboxes and for ends without a record. */
  endOf(id: SandboxId): Promise<EndedSandbox | undefined>;
  /** Those that `find` finds, newest first. */
  list(): readonly LiveSandbox[];
  /**
   * Ends a sandbox and waits until nothing of it is left. Concurrent calls wait for the same end.
   * @throws SandboxError not_found; unavailable when the backend failed to destroy it for now: it no longer exists for
   * clients, and the server keeps trying.
   */
  kill(id: SandboxId, reason?: EndReason): Promise<void>;
  /**
   * Moves the end to `timeoutMs` from now; it may come nearer, 0 or less ends it at once.
   * @throws SandboxError not_found, invalid_argument `Max instance length exceeded`.
   */
  setTimeout(id: SandboxId, timeoutMs: number): Promise<void>;
  /**
   * As setTimeout, but never moves the end nearer.
   * @throws SandboxError not_found, invalid_argument `Timeout cannot be greater than <N> hours`.
   */
  extend(id: SandboxId, timeoutMs: number): Promise<void>;
  /**
   * Freezes a sandbox. It serves nothing until it is resumed, and then goes on from there; after `sandboxes.pausedKept`
   * it is removed.
   * @throws SandboxError not_found, failed_precondition (its backend cannot pause so), aborted (paused or being paused
   * already, being created or killed), unavailable when the pause failed: it runs on.
   */
  pause(id: SandboxId, options?: PauseOptions): Promise<void>;
  /**
   * Resumes a paused sandbox, with an end `timeoutMs` from now, or none when that is undefined. Waits for a pause that is under way; concurrent calls
   * wait for the same resumption. @returns false when it ran already: nothing has changed.
   * @throws SandboxError not_found, invalid_argument (time-out), aborted (being created or killed), unavailable when it
   * failed: the sandbox stays paused.
   */
  resume(id: SandboxId, timeoutMs: number | undefined, options?: PauseOptions): Promise<boolean>;
  /**
   * Notes a request to a sandbox, which resumes a paused one with `autoResume`. @returns the function to call when the
   * request is done.
   * @throws SandboxError aborted when it stays paused or is being killed; the errors of `resume`.
   */
  use(sandbox: LiveSandbox): Promise<() => void>;
  /**
   * Replaces the egress rules of a running sandbox, for open connections too. Concurrent calls take effect in call
   * order.
   * @throws SandboxError not_found, aborted when it is not running, invalid_argument for invalid or unsupported rules;
   * the old rules stay in force then.
   */
  setNetworkPolicy(id: SandboxId, policy: NetworkPolicy): Promise<void>;
  /**
   * Changes the limits of a running sandbox. Concurrent calls take effect in call order.
   * @throws SandboxError not_found, aborted when it is not running, invalid_argument above a client's maximum,
   * resource_exhausted above the owner's quota, failed_precondition (its backend cannot resize it, or it uses more
   * already); the old limits stay in force then.
   */
  setLimits(id: SandboxId, change: LimitsChange): Promise<void>;
}

export const Sandboxes = createToken<Sandboxes>("sandboxes");

/** A request for another sandbox with the creation options of this one, and new secrets. */
export function createdLike(record: SandboxRecord): Omit<CreateSandbox, "id"> {
  return {
    owner: record.owner,
    template: record.template,
    snapshot: record.snapshot,
    timeoutMs: record.timeoutMs,
    onTimeout: record.onTimeout,
    keepsMemory: record.keepsMemory,
    autoResume: record.autoResume,
    metadata: record.metadata,
    environment: record.environment,
    secure: record.accessToken !== undefined,
    allowPublicTraffic: record.trafficAccessToken === undefined,
    maskRequestHost: record.maskRequestHost,
    limits: record.limits,
    allowInternetAccess: record.allowInternetAccess,
    egress: record.egress,
    mounts: record.mounts,
    backend: record.backend,
  };
}

/**
 * Chooses the server of a new sandbox, where there are several. @returns its name; undefined for this one.
 * @throws SandboxError when none can have it.
 */
export type Placement = (request: CreateSandbox, signal?: AbortSignal) => Promise<string | undefined>;

/** Choice among several servers, for the sandboxes that clients ask for. */
export type Placements = Slot<Placement>;

export const Placements = createToken<Placements>("placements");

/** A creation that another server is to do: its request is passed on. */
export class CreatedElsewhere extends Error {
  override readonly name = "CreatedElsewhere";
  readonly server: string;

  constructor(server: string) {
    super(`server '${server}' creates it`);
    this.server = server;
  }
}

/**
 * The sandboxes of one tenant; for others' it answers as for unknown ones.
 * @param ownerOf answers for every sandbox that is not completely removed.
 * @param placement chooses the server of a new one.
 */
export function tenantSandboxes(
  all: Sandboxes,
  tenant: string,
  ownerOf: (id: SandboxId) => string | undefined,
  placement?: Placements,
): Sandboxes {
  const owns = (id: SandboxId): boolean => ownerOf(id) === tenant;
  const owned = (id: SandboxId): SandboxId => {
    if (!owns(id)) throw new UnknownSandbox(id);
    return id;
  };
  const endOf = async (id: SandboxId): Promise<EndedSandbox | undefined> => {
    const ended = await all.endOf(id);
    return ended?.owner === tenant ? ended : undefined;
  };
  return {
    defaultTimeoutMs: all.defaultTimeoutMs,
    of: (other, options) => all.of(other, options),
    create: async (request, signal) => {
      const wanted = { ...request, owner: tenant };
      const server = await placement?.used?.(wanted, signal);
      if (server !== undefined) throw new CreatedElsewhere(server);
      return all.create(wanted, signal);
    },
    check: (request) => all.check({ ...request, owner: tenant }),
    checkTimeout: (timeoutMs) => all.checkTimeout(timeoutMs),
    find: (id) => (owns(id) ? all.find(id) : undefined),
    get: (id) => all.get(owned(id)),
    onCreated: (listener) =>
      all.onCreated((sandbox) => {
        if (sandbox.record.owner === tenant) listener(sandbox);
      }),
    remembers: async (id) => owns(id) || (await endOf(id)) !== undefined,
    endOf,
    list: () => all.list().filter(({ record }) => record.owner === tenant),
    kill: async (id, reason) => all.kill(owned(id), reason),
    setTimeout: async (id, timeoutMs) => all.setTimeout(owned(id), timeoutMs),
    extend: async (id, timeoutMs) => all.extend(owned(id), timeoutMs),
    pause: async (id, options) => all.pause(owned(id), options),
    resume: async (id, timeoutMs, options) => all.resume(owned(id), timeoutMs, options),
    use: async (sandbox) => {
      owned(sandbox.record.id);
      return all.use(sandbox);
    },
    setNetworkPolicy: async (id, policy) => all.setNetworkPolicy(owned(id), policy),
    setLimits: async (id, change) => all.setLimits(owned(id), change),
  };
}
