import type { Clock, Logger, SandboxEvents } from "@coppice/core";
import type { Membership } from "../membership/membership.js";
import { NODES, type NodeRecord } from "../membership/node-record.js";
import type { Change, Check, FleetStore } from "../store/fleet-store.js";
import type { KeyView } from "../store/key-view.js";
import { countedOf, type FleetSandbox, SANDBOXES, sandboxText, sandboxOf } from "./fleet-sandbox.js";

interface LostSandboxesOptions {
  readonly store: FleetStore;
  readonly membership: Pick<Membership, "check">;
  readonly node: string;
  readonly nodes: Pick<KeyView<NodeRecord>, "get" | "entries">;
  readonly sandboxes: Pick<KeyView<FleetSandbox>, "get" | "entries">;
  readonly keptMs: number;
  /** Called when some may be there whose loss is to be told. */
  readonly tell: () => Promise<void>;
  readonly clock: Clock;
  readonly log: Pick<Logger, "warn">;
}

/** Each member waits so long for those before it, so that the work is usually done once. */
const TURN_MS = 300;
const RETRY_MS = 2000;
/** Sandboxes of one commit, which has three changes for each. */
const BATCH = 30;

/** Marks the sandboxes of members that are gone as lost, so that every server tells their clients. */
export class LostSandboxes {
  readonly #options: LostSandboxesOptions;
  #cancel = (): void => {};
  #isStopped = false;

  constructor(options: LostSandboxesOptions) {
    this.#options = options;
  }

  /** Call after each joining, and when a member is gone. */
  lookSoon(delayMs = this.#turn() * TURN_MS): void {
    this.#cancel();
    if (!this.#isStopped) this.#cancel = this.#options.clock.after(delayMs, () => void this.#look());
  }

  stop(): void {
    this.#isStopped = true;
    this.#cancel();
  }

  /** This member's place among all, by their names. */
  #turn(): number {
    const { nodes, node } = this.#options;
    return [...nodes.entries()].filter(([name, { stoppedAtMs }]) => name < node && stoppedAtMs === undefined)
      .length;
  }

  async #look(): Promise<void> {
    const { nodes, sandboxes, log } = this.#options;
    const lost = Map.groupBy(
      [...sandboxes.entries()].filter(
        ([, { node, lostAtMs }]) => lostAtMs === undefined && nodes.get(node) === undefined,
      ),
      ([, { node }]) => node,
    );
    try {
      for (const [node, found] of lost) {
        for (let at = 0; at < found.length; at += BATCH) await this.#mark(node, found.slice(at, at + BATCH));
        log.warn({ node, count: found.length }, "the sandboxes of a server that is gone are lost");
      }
      await this.#options.tell();
    } catch (error) {
      log.warn({ err: error }, "lost sandboxes could not be marked or told yet");
      this.lookSoon(RETRY_MS);
    }
  }

  /** Marks those whose records have not changed, if their server is still gone. */
  async #mark(node: string, found: readonly (readonly [string, FleetSandbox])[]): Promise<void> {
    const { store, membership, node: own, clock, keptMs } = this.#options;
    const checks: Check[] = [
      membership.check,
      { key: NODES + node, createRevision: 0 },
      ...found.map(([id, { revision }]) => ({ key: SANDBOXES + id, modRevision: revision })),
    ];
    const lease = await store.grant(keptMs);
    const lostAtMs = clock.now();
    const changes = found.flatMap(([id, known]): readonly Change[] => [
      { put: SANDBOXES + id, value: sandboxText({ ...known, lostAtMs }), lease },
      { delete: countedOf(known.tenant) + id },
      { put: UNTOLD + id, value: own, lease },
    ]);
    const isDone = (await store.commit(checks, changes)) !== undefined;
    if (isDone) return;
    await store.revoke(lease);
    // One of them changed: another member did the same, or its server is back.
    if (found.length > 1) for (const one of found) await this.#mark(node, [one]);
  }
}

/** Keys of lost sandboxes whose loss is to be told, by id; the value is the name of the server that is to tell it. */
export const UNTOLD = "untold/";

interface ToldLossesOptions {
  readonly store: FleetStore;
  readonly membership: Pick<Membership, "check">;
  readonly node: string;
  readonly nodes: Pick<KeyView<NodeRecord>, "get">;
  readonly events: Pick<SandboxEvents, "tellEnd">;
  readonly log: Pick<Logger, "info">;
}

/** Tells the losses that this server has to tell as events, and those of tellers that are gone. */
export async function tellLosses(options: ToldLossesOptions): Promise<void> {
  const { store, membership, node, nodes, events, log } = options;
  const { entries } = await store.list(UNTOLD);
  for (const { key, value: teller, modRevision } of entries) {
    if (teller !== node) {
      if (nodes.get(teller) !== undefined) continue;
      // One of several that find this out.
      const checks = [membership.check, { key, modRevision }];
      if ((await store.commit(checks, [{ put: key, value: node }])) === undefined) continue;
    }
    const id = key.slice(UNTOLD.length);
    const entry = await store.get(SANDBOXES + id);
    const sandbox = entry && sandboxOf(entry);
    if (sandbox?.lostAtMs !== undefined) await events.tellEnd(lossOf(id, sandbox, sandbox.lostAtMs));
    await store.commit([membership.check], [{ delete: key }]);
    log.info({ sandbox: id }, "the loss of a sandbox is told");
  }
}

function lossOf(sandboxId: string, { tenant, template }: FleetSandbox, atMs: number) {
  const detail = { reason: "server lost" };
  return { sandboxId, atMs, owner: tenant, template, snapshot: undefined, metadata: {}, detail };
}
