import {
  type Clock,
  digestOf,
  type LiveSandbox,
  type Logger,
  SandboxError,
  type Sandboxes,
  type Startup,
} from "@coppice/core";
import type { Membership } from "../membership/membership.js";
import type { Change, FleetStore } from "../store/fleet-store.js";
import { type FleetSandbox, SANDBOXES, sandboxOf, sandboxText } from "./fleet-sandbox.js";

export interface OwnSandboxesOptions {
  readonly store: FleetStore;
  readonly membership: Pick<Membership, "check">;
  readonly node: string;
  readonly sandboxes: Pick<Sandboxes, "find" | "list" | "kill">;
  readonly clock: Clock;
  readonly log: Pick<Logger, "warn">;
}

const RETRY_MS = 5000;
/** Changes of one commit. */
const BATCH = 100;

/** Keeps the fleet's record of the sandboxes that this server has. */
export class OwnSandboxes implements Startup {
  readonly #options: OwnSandboxesOptions;
  /** Ended ones whose records are to be removed. */
  readonly #ended = new Set<string>();
  /** Those that this server ends because the fleet has given them up: their records tell of that. */
  readonly #givenUp = new Set<string>();
  #isStopped = false;
  #cancelRetry = (): void => {};

  constructor(options: OwnSandboxesOptions) {
    this.#options = options;
  }

  concerns(): boolean {
    return true;
  }

  /** Records a sandbox as this server's, before its creator knows it. @throws SandboxError fleet_fenced, fleet_unavailable */
  async start(sandbox: LiveSandbox, signal: AbortSignal): Promise<void> {
    const { store, membership } = this.#options;
    const { id } = sandbox.record;
    const key = SANDBOXES + id;
    const found = await store.get(key);
    signal.throwIfAborted();
    // One that starts again after a stop has its record.
    if (found !== undefined && this.#isOwn(sandboxOf(found))) return this.#follow(sandbox);
    const revision = await store.commit(
      [membership.check, { key, createRevision: 0 }],
      [{ put: key, value: this.#textOf(sandbox) }],
    );
    if (revision === undefined)
      throw new SandboxError(
        "fleet_unavailable",
        "the fleet has another record of this sandbox, please retry",
      );
    this.#follow(sandbox);
  }

  /**
   * Makes the record and what this server has agree, after it has joined: it keeps what no record contradicts, and ends
   * what was given up for lost meanwhile.
   */
  async reconcile(): Promise<void> {
    const { store, sandboxes, log } = this.#options;
    const { entries } = await store.list(SANDBOXES);
    const recorded = new Map(entries.map((entry) => [entry.key.slice(SANDBOXES.length), sandboxOf(entry)]));
    const changes: Change[] = [];
    for (const sandbox of sandboxes.list()) {
      const { id } = sandbox.record;
      const known = recorded.get(id);
      if (known === undefined && !recorded.has(id))
        changes.push({ put: SANDBOXES + id, value: this.#textOf(sandbox) });
      if (known === undefined || this.#isOwn(known)) this.#follow(sandbox);
      else {
        this.#givenUp.add(id);
        log.warn({ sandbox: id }, "a sandbox that the fleet has given up is ended");
        // A failure is logged there, and tried again.
        void sandboxes.kill(id, "server lost").catch(() => undefined);
      }
    }
    for (const [id, known] of recorded)
      if (
        known?.node === this.#options.node &&
        known.lostAtMs === undefined &&
        sandboxes.find(id) === undefined
      )
        changes.push({ delete: SANDBOXES + id });
    await this.#commit(changes);
  }

  /** True when some of them go on without this server, for its next start. */
  get hasLasting(): boolean {
    return this.#options.sandboxes.list().some(isLasting);
  }

  /** Removes the records of those that end with this server. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    for (const sandbox of this.#options.sandboxes.list())
      if (!isLasting(sandbox)) this.#ended.add(sandbox.record.id);
    await this.#forget();
    this.#cancelRetry();
  }

  #textOf({ record }: LiveSandbox): string {
    const { owner: tenant, template, backend, startedAtMs, accessToken } = record;
    const tokenDigest = accessToken === undefined ? undefined : digestOf(accessToken);
    return sandboxText({ node: this.#options.node, tenant, template, backend, startedAtMs, tokenDigest });
  }

  #isOwn(known: FleetSandbox | undefined): boolean {
    return known?.node === this.#options.node && known.lostAtMs === undefined;
  }

  #follow(sandbox: LiveSandbox): void {
    const { id } = sandbox.record;
    const onEnd = (): void => {
      // A pause without memory, which another LiveSandbox follows.
      if (this.#options.sandboxes.find(id) !== undefined) return;
      if (this.#givenUp.delete(id)) return;
      this.#ended.add(id);
      if (!this.#isStopped) void this.#forget();
    };
    if (sandbox.ended.aborted) onEnd();
    else sandbox.ended.addEventListener("abort", onEnd, { once: true });
  }

  async #forget(): Promise<void> {
    const { clock, log } = this.#options;
    this.#cancelRetry();
    const ids = [...this.#ended];
    try {
      await this.#commit(ids.map((id) => ({ delete: SANDBOXES + id })));
      for (const id of ids) this.#ended.delete(id);
    } catch (error) {
      log.warn({ err: error, count: ids.length }, "the fleet was not told of ended sandboxes yet");
      this.#cancelRetry = clock.after(RETRY_MS, () => void this.#forget());
    }
  }

  async #commit(changes: readonly Change[]): Promise<void> {
    const { store, membership } = this.#options;
    for (let at = 0; at < changes.length; at += BATCH) {
      const revision = await store.commit([membership.check], changes.slice(at, at + BATCH));
      if (revision === undefined)
        throw new SandboxError("fleet_fenced", "this server was no member of the fleet any more");
    }
  }
}

function isLasting({ record, runtime }: LiveSandbox): boolean {
  return record.state === "paused" || (record.state === "running" && runtime.adoption !== undefined);
}
