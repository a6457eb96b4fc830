import { createToken } from "../../kernel/token.js";
import type { Limits, SandboxId } from "../contract/backend.js";
import type { EgressRules, NetworkPolicy } from "../contract/egress-rules.js";
import type { EndedSandbox } from "../ledger/ledger.js";
import type { EndReason, Idempotency, LiveSandbox, OnTimeout } from "../model/live-sandbox.js";
import type { ReadinessProbe } from "../model/readiness-probe.js";
import type { LimitsChange } from "../model/requested-limits.js";
import type { RequestedMount } from "../model/volume-mounts.js";

/** Options of a new sandbox. */
export interface CreateSandbox {
  /** The tenant that it is made for; `default` when absent. */
  readonly owner?: string | undefined;
  /** A configured template; the message of a refusal is E2B's. */
  readonly template: string;
  /** Life in milliseconds; undefined = until killed. */
  readonly timeoutMs: number | undefined;
  /** `kill` when absent. */
  readonly onTimeout?: OnTimeout | undefined;
  /** False: a pause at its end ends its processes and keeps its files. True when absent. */
  readonly keepsMemory?: boolean | undefined;
  /** Let requests resume it when it is paused; only with `onTimeout: "pause"`. False when absent. */
  readonly autoResume?: boolean | undefined;
  readonly metadata?: Readonly<Record<string, string>> | undefined;
  readonly environment?: Readonly<Record<string, string>> | undefined;
  /** Mint an access token. */
  readonly secure: boolean;
  /** False: mint a traffic access token, without which nothing but envd is reached. True when absent. */
  readonly allowPublicTraffic?: boolean | undefined;
  /** The Host that programs on its ports get to see, `${PORT}` standing for the port. */
  readonly maskRequestHost?: string | undefined;
  readonly limits?: Limits | undefined;
  /** Kept in its record, for who finds it again by that. */
  readonly idempotency?: Idempotency | undefined;
  readonly allowInternetAccess?: boolean | undefined;
  /** Rules for connections to the outside; none when absent. */
  readonly egress?: EgressRules | undefined;
  /** Volumes of the owner's that it is to have; none when absent. */
  readonly mounts?: readonly RequestedMount[] | undefined;
  /** Probe that has to succeed before the creation does; the template's when absent. */
  readonly readinessProbe?: ReadinessProbe | undefined;
  /** Backend to use instead of the server's default. */
  readonly backend?: string | undefined;
  /** A fixed id (the debug sandbox); a random one when absent. */
  readonly id?: SandboxId | undefined;
}

/** How a sandbox is paused or resumed. */
export interface PauseOptions {
  /**
   * False: its processes end and its files are kept; once resumed it begins anew, and its LiveSandbox is another one. Of
   * a resumption: of a sandbox that was paused with its processes, too. True when absent.
   */
  readonly keepsMemory?: boolean | undefined;
}

/** The sandboxes of this server: the one place that makes, finds and ends them. */
export interface Sandboxes {
  /** Life of a sandbox whose creator names no time-out, in milliseconds: for whoever serves creators. */
  readonly defaultTimeoutMs: number;
  /**
   * The sandboxes of one tenant alone: made for it, found for it, and others' answered as if they had never been.
   * What serves a request uses those of its asker: `sandboxesOf`.
   */
  of(tenant: string): Sandboxes;
  /**
   * @throws SandboxError not_found (template), resource_exhausted (`sandboxes.maximum` or a quota reached),
   * invalid_argument (time-out, id, limits beyond what a creator may choose, network rules that make no sense or
   * that the backend cannot keep, volumes that there are not or that cannot be where they are wanted),
   * failed_precondition (its backend cannot pause, and is to), already_exists (a fixed id), unavailable (too many
   * are being made, it was not ready in time, or the server is stopping), canceled (`signal`), deadline_exceeded, or
   * what the backend threw; then nothing is left of it.
   */
  create(request: CreateSandbox, signal?: AbortSignal): Promise<LiveSandbox>;
  /** The sandbox if it serves or is being made, undefined otherwise: also while it is being killed. */
  find(id: SandboxId): LiveSandbox | undefined;
  /** @throws SandboxError not_found with the E2B text and the phrase that the Ruby client looks for. */
  get(id: SandboxId): LiveSandbox;
  /** Tells of each sandbox that is made from now on, as soon as it runs and before its creator hears of it. */
  onCreated(listener: (sandbox: LiveSandbox) => void): void;
  /** True for one of which something is left, and for one that has ended and is remembered (`sandboxes.endedKept`). */
  remembers(id: SandboxId): Promise<boolean>;
  /** How a sandbox ended, or is ending; undefined for one that has not, is not remembered or never was. */
  endOf(id: SandboxId): Promise<EndedSandbox | undefined>;
  /** Those that `find` finds, newest first. */
  list(): readonly LiveSandbox[];
  /**
   * Ends a sandbox and waits until nothing of it is left. Concurrent calls wait for the same end.
   * @throws SandboxError not_found when there is none, unavailable when the backend failed to destroy it
   * for now: it is gone for everybody, and the server keeps trying.
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
   * Stops every process of a sandbox where it is. It serves nothing until it is resumed, and goes on from
   * there; it is removed when nobody does for `sandboxes.pausedKept`.
   * @throws SandboxError not_found, failed_precondition (its backend cannot pause so), aborted (it is paused, or
   * being paused, already; it is being made or killed), unavailable when that failed: then it runs on.
   */
  pause(id: SandboxId, options?: PauseOptions): Promise<void>;
  /**
   * Lets a paused sandbox run on, with an end `timeoutMs` from now. Waits for a pause that is under way;
   * concurrent calls wait for the same resumption.
   * @returns false when it ran already: then nothing has changed.
   * @throws SandboxError not_found, invalid_argument (time-out), aborted (it is being made or killed),
   * unavailable when that failed: then it is still paused.
   */
  resume(id: SandboxId, timeoutMs: number, options?: PauseOptions): Promise<boolean>;
  /**
   * Takes note of a request that is served by a sandbox, which resumes one that is paused with `autoResume`.
   * @returns what to call when the request is done.
   * @throws SandboxError aborted when it is paused and stays so, or is being killed; what `resume` throws.
   */
  use(sandbox: LiveSandbox): Promise<() => void>;
  /**
   * Replaces what a running sandbox may reach outside, open connections included. Concurrent calls take effect
   * in their order.
   * @throws SandboxError not_found, aborted when it is not running, invalid_argument when the rules make no
   * sense or the backend cannot keep them; then what held before holds still.
   */
  setNetworkPolicy(id: SandboxId, policy: NetworkPolicy): Promise<void>;
  /**
   * Changes what a running sandbox may use. Concurrent calls take effect in their order.
   * @throws SandboxError not_found, aborted when it is not running, invalid_argument for more than may be asked
   * for, resource_exhausted for more than its owner may have, failed_precondition (its backend cannot resize it, or
   * it uses more already); then what held before holds still.
   */
  setLimits(id: SandboxId, change: LimitsChange): Promise<void>;
}

export const Sandboxes = createToken<Sandboxes>("sandboxes");
