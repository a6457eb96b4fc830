import { endEventId, type Logger, type SandboxEvent, type SandboxEvents } from "@coppice/core";
import type { Membership } from "../membership/membership.js";
import type { NodeRecord } from "../membership/node-record.js";
import type { FleetStore } from "../store/fleet-store.js";
import type { KeyView } from "../store/key-view.js";
import { type FleetSandbox, SANDBOXES, sandboxOf } from "./fleet-sandbox.js";

/** Keys of lost sandboxes whose loss is to be told, by id; the value is the name of the server that is to tell it. */
export const UNTOLD = "untold/";

export interface ToldLossesOptions {
  readonly store: FleetStore;
  readonly membership: Pick<Membership, "check">;
  readonly node: string;
  readonly nodes: Pick<KeyView<NodeRecord>, "get">;
  readonly events: Pick<SandboxEvents, "tell">;
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
    if (sandbox?.lostAtMs !== undefined) await events.tell([lossOf(id, sandbox, sandbox.lostAtMs)]);
    await store.commit([membership.check], [{ delete: key }]);
    log.info({ sandbox: id }, "the loss of a sandbox is told");
  }
}

function lossOf(sandboxId: string, { tenant, template }: FleetSandbox, atMs: number): SandboxEvent {
  const detail = { reason: "server lost" };
  const facts = { sandboxId, owner: tenant, template, snapshot: undefined, metadata: {}, detail };
  return { id: endEventId(sandboxId), type: "killed", atMs, ...facts };
}
