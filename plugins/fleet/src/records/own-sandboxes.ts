import {
  type Clock,
  digestOf,
  type LiveSandbox,
  type Logger,
  SandboxError,
  Semaphore,
  type Sandboxes,
  type SandboxRecord,
  type SharedRecords,
} from "@coppice/core";
import type { Membership } from "../membership/membership.js";
import {
  type Change,
  type Check,
  type FleetStore,
  UnknownOutcome,
  contradicted,
  untilCommitted,
  parsedText,
} from "../store/fleet-store.js";
import type { KeyView } from "../store/key-view.js";
import { countedOf, type FleetSandbox, SANDBOXES, sandboxOf, sandboxText } from "./fleet-sandbox.js";
import type { Limits } from "@coppice/core/backend";
import { z } from "zod";
import { REASONS } from "../reasons.js";

type SharedRecord = Parameters<SharedRecords["use"]>[0];
type Reservation = Parameters<SharedRecord["add"]>[1];

/** Runs what concerns the same name one after the other. */
class Turns {
  readonly #last = new Map<string, Promise<void>>();

  async run(name: string, work: () => Promise<void>): Promise<void> {
    const done = (this.#last.get(name) ?? Promise.resolve()).then(work);
    // A failure is its own caller's.
    const settled = done.catch(() => undefined);
    this.#last.set(name, settled);
    try {
      await done;
    } finally {
      if (this.#last.get(name) === settled) this.#last.delete(name);
    }
  }
}

const counted = z.object({ cpuCount: z.number().optional(), memoryMiB: z.number().optional() });

/** Limits of a sandbox that quotas count, as the store has them. */
function countedText(limits: Limits): string {
  return JSON.stringify(counted.parse(limits));
}

/** None for a text that another version has written: the sandbox is counted all the same. */
function limitsOf(text: string): Limits {
  return parsedText(counted, text) ?? {};
}

interface OwnSandboxesOptions {
  readonly store: FleetStore;
  readonly membership: Pick<Membership, "check">;
  readonly node: string;
  /** What this server knows of the record; it may be behind. */
  readonly known: Pick<KeyView<FleetSandbox>, "entries" | "revision">;
  readonly sandboxes: Pick<Sandboxes, "find" | "list" | "kill">;
  readonly clock: Clock;
  readonly log: Pick<Logger, "warn">;
}

const RETRY_MS = 5000;
/** Sandboxes of one commit, which has two changes for each. */
const BATCH = 50;
/** How long the end of a sandbox waits for the fleet. */
const PATIENCE_MS = 1000;

/** Keeps the fleet's record of the sandboxes that this server has. */
export class OwnSandboxes implements SharedRecord {
  readonly #options: OwnSandboxesOptions;
  /** Tenants of those that are recorded, by id. */
  readonly #recorded = new Map<string, string>();
  readonly #adding = new Set<string>();
  /** Changes that the fleet has to be told of, by id. */
  readonly #untold = new Map<string, readonly Change[]>();
  readonly #turns = new Turns();
  /** One after the other: what is told last is what is true. */
  readonly #telling = new Semaphore();
  #cancelRetry = (): void => {};

  constructor(options: OwnSandboxesOptions) {
    this.#options = options;
  }

  /** @throws SandboxError fleet_fenced, fleet_unavailable, or what `admit` throws */
  async add(sandbox: SandboxRecord, reservation: Reservation): Promise<void> {
    const { id, owner } = sandbox;
    this.#adding.add(id);
    try {
      await this.#admitted(sandbox, reservation, [{ key: SANDBOXES + id, createRevision: 0 }]);
      this.#recorded.set(id, owner);
    } catch (error) {
      if (error instanceof UnknownOutcome) this.#tell(id, removalOf(id, owner));
      throw error;
    } finally {
      this.#adding.delete(id);
    }
  }

  async raise(sandbox: SandboxRecord, reservation: Reservation): Promise<void> {
    await this.#admitted(sandbox, reservation, []);
  }

  async lower(sandbox: SandboxRecord): Promise<void> {
    if (!this.#recorded.has(sandbox.id)) return;
    this.#tell(sandbox.id, this.#recordOf(sandbox));
    await this.#told();
  }

  async remove(id: string): Promise<void> {
    const tenant = this.#recorded.get(id);
    if (this.#recorded.delete(id) && tenant !== undefined) this.#tell(id, removalOf(id, tenant));
    if (this.#untold.has(id)) await this.#told();
  }

  /** Removes a record that names this server for a sandbox that it does not have: it was made late, after the end. */
  onRecord(id: string, { node, tenant, lostAtMs }: FleetSandbox): void {
    if (node !== this.#options.node || lostAtMs !== undefined) return;
    const isKnown = this.#recorded.has(id) || this.#adding.has(id) || this.#untold.has(id);
    if (!isKnown && this.#options.sandboxes.find(id) === undefined) this.#tell(id, removalOf(id, tenant));
  }

  /**
   * Makes the record and what this server has agree, after it has joined: it keeps what no record contradicts, and ends
   * what was given up for lost meanwhile.
   */
  async reconcile(): Promise<void> {
    const { store, known: view, sandboxes, log } = this.#options;
    const recorded = new Map<string, FleetSandbox | undefined>();
    const note = (id: string, known: FleetSandbox | undefined): void => {
      if (recorded.has(id) || this.#isOwn(known) || sandboxes.find(id) !== undefined) recorded.set(id, known);
    };
    const { revision } = view;
    for (const [id, known] of view.entries()) note(id, known);
    // What others have put since then. A record that is gone contradicts nothing, and may be deleted once more.
    await store.each(
      SANDBOXES,
      (entry) => note(entry.key.slice(SANDBOXES.length), sandboxOf(entry)),
      revision,
    );
    this.#recorded.clear();
    this.#untold.clear();
    for (const { record } of sandboxes.list()) {
      const { id } = record;
      if (this.#adding.has(id)) continue;
      const known = recorded.get(id);
      if (!recorded.has(id) || this.#isOwn(known)) {
        this.#recorded.set(id, record.owner);
        // Its limits may have been changed when the last server ended.
        this.#untold.set(id, this.#recordOf(record));
      } else {
        log.warn({ sandbox: id }, "a sandbox that the fleet has given up is ended");
        // A failure is logged there, and tried again.
        void sandboxes.kill(id, "server lost").catch(() => undefined);
      }
    }
    for (const [id, known] of recorded)
      if (this.#isOwn(known) && known !== undefined && !this.#recorded.has(id) && !this.#adding.has(id))
        this.#untold.set(id, removalOf(id, known.tenant));
    await this.#telling.run(() => this.#commitUntold());
  }

  /** True when some of them go on without this server, for its next start. */
  get hasLasting(): boolean {
    return this.#options.sandboxes.list().some(isLasting);
  }

  /** Removes the records of those that end with this server. */
  async stop(): Promise<void> {
    for (const sandbox of this.#options.sandboxes.list()) {
      const { id, owner } = sandbox.record;
      if (!isLasting(sandbox)) this.#untold.set(id, removalOf(id, owner));
    }
    this.#recorded.clear();
    await this.#telling.run(() => this.#tellAll());
    this.#untold.clear();
    this.#cancelRetry();
  }

  /** Records a sandbox, or its new limits, if its tenant may have it beside what all servers have of that tenant. */
  async #admitted(
    sandbox: SandboxRecord,
    { admit, signal }: Reservation,
    checks: readonly Check[],
  ): Promise<void> {
    const { store, membership } = this.#options;
    const prefix = countedOf(sandbox.owner);
    const commit = async (more: readonly Check[]): Promise<boolean> => {
      signal.throwIfAborted();
      const all = [membership.check, ...checks, ...more];
      return (await store.commit(all, this.#recordOf(sandbox))) !== undefined;
    };
    if (admit === undefined) {
      if (!(await commit([]))) throw contradicted();
      return;
    }
    await this.#turns.run(sandbox.owner, () =>
      untilCommitted(async () => {
        signal.throwIfAborted();
        const { entries, revision } = await store.list(prefix);
        const others = entries.flatMap(({ key, value }) => {
          const id = key.slice(prefix.length);
          return id === sandbox.id ? [] : [{ id, limits: limitsOf(value) }];
        });
        admit(others);
        return commit([{ prefix, notPutAfter: revision }]);
      }),
    );
  }

  /** Both keys each time: where one appears after its sandbox has ended, `onRecord` removes both. */
  #recordOf(sandbox: SandboxRecord): readonly Change[] {
    const { id, owner: tenant, template, backend, startedAtMs, accessToken, limits } = sandbox;
    const tokenDigest = accessToken === undefined ? undefined : digestOf(accessToken);
    const { node } = this.#options;
    return [
      {
        put: SANDBOXES + id,
        value: sandboxText({ node, tenant, template, backend, startedAtMs, tokenDigest }),
      },
      { put: countedOf(tenant) + id, value: countedText(limits) },
    ];
  }

  #isOwn(known: FleetSandbox | undefined): boolean {
    return known?.node === this.#options.node && known.lostAtMs === undefined;
  }

  #tell(id: string, changes: readonly Change[]): void {
    this.#untold.set(id, changes);
    void this.#telling.run(() => this.#tellAll());
  }

  /** Resolves when the fleet knows, or cannot be told soon. */
  async #told(): Promise<void> {
    const { promise: impatient, resolve } = Promise.withResolvers<void>();
    const cancel = this.#options.clock.after(PATIENCE_MS, resolve);
    await Promise.race([this.#telling.run(() => undefined), impatient]);
    cancel();
  }

  async #tellAll(): Promise<void> {
    const { clock, log } = this.#options;
    this.#cancelRetry();
    try {
      await this.#commitUntold();
    } catch (error) {
      log.warn({ err: error, count: this.#untold.size }, "the fleet was not told of its changes yet");
      this.#cancelRetry = clock.after(RETRY_MS, () => void this.#telling.run(() => this.#tellAll()));
    }
  }

  async #commitUntold(): Promise<void> {
    const { store, membership } = this.#options;
    const all = [...this.#untold];
    for (let at = 0; at < all.length; at += BATCH) {
      const batch = all.slice(at, at + BATCH);
      const revision = await store.commit(
        [membership.check],
        batch.flatMap(([, changes]) => changes),
      );
      if (revision === undefined)
        throw new SandboxError(REASONS.fleet_fenced, "this server was no member of the fleet any more");
      for (const [id, changes] of batch) if (this.#untold.get(id) === changes) this.#untold.delete(id);
    }
  }
}

function removalOf(id: string, tenant: string): readonly Change[] {
  return [{ delete: SANDBOXES + id }, { delete: countedOf(tenant) + id }];
}

function isLasting(sandbox: LiveSandbox): boolean {
  const { state } = sandbox.record;
  // The runtime of one that does not run is refused.
  return state === "paused" || (state === "running" && sandbox.runtime.adoption !== undefined);
}
