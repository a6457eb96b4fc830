import { createToken } from "../kernel/token.js";
import type { Limits, SandboxId } from "./backend.js";
import type { EndReason, LiveSandbox } from "./live-sandbox.js";

/** What is needed to make a sandbox. */
export interface CreateSandbox {
  /** A configured template; the message of a refusal is E2B's. */
  readonly template: string;
  /** Life in milliseconds; undefined = until killed. */
  readonly timeoutMs: number | undefined;
  readonly metadata?: Readonly<Record<string, string>> | undefined;
  readonly environment?: Readonly<Record<string, string>> | undefined;
  /** Mint an access token. */
  readonly secure: boolean;
  /** False: mint a traffic access token, without which nothing but envd is reached. True when absent. */
  readonly allowPublicTraffic?: boolean | undefined;
  /** The Host that programs on its ports get to see, `${PORT}` standing for the port. */
  readonly maskRequestHost?: string | undefined;
  readonly limits?: Limits | undefined;
  readonly allowInternetAccess?: boolean | undefined;
  /** A name of the default's stead; the server's default backend when absent. */
  readonly backend?: string | undefined;
  /** A fixed id (the debug sandbox); a random one when absent. */
  readonly id?: SandboxId | undefined;
}

/** The sandboxes of this server: the one place that makes, finds and ends them. */
export interface Sandboxes {
  /** Life of a sandbox whose creator names no time-out, in milliseconds: for whoever serves creators. */
  readonly defaultTimeoutMs: number;
  /**
   * @throws SandboxError not_found (template), resource_exhausted (`sandboxes.maximum` reached),
   * invalid_argument (time-out, id), already_exists (a fixed id), unavailable (too many are being made,
   * or the server is stopping), canceled (`signal`), deadline_exceeded, or what the backend threw; then
   * nothing is left of it.
   */
  create(request: CreateSandbox, signal?: AbortSignal): Promise<LiveSandbox>;
  /** The sandbox if it serves or is being made, undefined otherwise: also while it is being killed. */
  find(id: SandboxId): LiveSandbox | undefined;
  /** @throws SandboxError not_found with the E2B text and the phrase that the Ruby client looks for. */
  get(id: SandboxId): LiveSandbox;
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
}

export const Sandboxes = createToken<Sandboxes>("sandboxes");
