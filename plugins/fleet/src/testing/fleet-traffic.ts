import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import type { SandboxRecord, Sandboxes } from "@coppice/core";
import { fakeClock } from "@coppice/core/testing";
import { OwnSandboxes } from "../records/own-sandboxes.js";
import { SANDBOXES, sandboxOf } from "../records/fleet-sandbox.js";
import type { FleetStore } from "../store/fleet-store.js";
import { KeyView } from "../store/key-view.js";
import { startCountingRelay } from "./counting-relay.js";
import { withEtcd } from "./with-etcd.js";

export interface TrafficOptions {
  readonly endpoint: string;
  /** Servers that watch the record. */
  readonly watchers: number;
  /** Sandboxes that are made and ended, and renewals. */
  readonly rounds: number;
  /** Processor time that etcd has had. */
  readonly processorMs: () => number;
}

/** What one thing costs, in bytes of TCP both ways and in etcd's processor time. */
export interface Cost {
  readonly bytes: number;
  readonly processorMs: number;
}

export interface Traffic {
  /** A change of a sandbox, at each server that hears of it. */
  readonly event: Cost;
  /** The commit of a change, without those who hear of it. */
  readonly commit: Cost;
  /** A renewal of a server's lease. */
  readonly renewal: Cost;
}

const LEASE_MS = 10_000;
const log = { debug: () => {}, warn: () => {}, error: () => {} };

/** Measures what servers of a fleet and etcd say to each other, with the code and the messages of a server. */
export async function measureTraffic(options: TrafficOptions): Promise<Traffic> {
  const { endpoint, watchers, rounds, processorMs } = options;
  await using relay = await startCountingRelay(endpoint);
  const measure = async (times: number, work: () => Promise<void>): Promise<Cost> => {
    const [bytes, usedMs] = [relay.bytes, processorMs()];
    await work();
    return { bytes: (relay.bytes - bytes) / times, processorMs: (processorMs() - usedMs) / times };
  };
  let result: Traffic | undefined;
  await withEtcd({ endpoints: [relay.url] }, async (near) => {
    const lease = await near.grant(LEASE_MS);
    const renewal = await measure(rounds, async () => {
      for (let round = 0; round < rounds; round += 1) await near.renew(lease);
    });
    await near.revoke(lease);
    const commit = await measure(2 * rounds, () => change(near, rounds));
    await withEtcd({ endpoints: [endpoint] }, async (direct) => {
      const views = Array.from(
        { length: watchers },
        () => new KeyView({ store: near, prefix: SANDBOXES, parse: sandboxOf, log }),
      );
      for (const view of views) await view.start();
      const heard = await measure(2 * rounds, async () => {
        await change(direct, rounds);
        const { revision } = await direct.list(SANDBOXES);
        while (views.some((view) => view.revision < revision)) await sleep(5);
      });
      for (const view of views) await view.stop();
      const event = {
        bytes: heard.bytes / watchers,
        processorMs: (heard.processorMs - commit.processorMs) / watchers,
      };
      result = { event, commit, renewal };
    });
  });
  if (result === undefined) throw new Error("nothing was measured");
  return result;
}

/** Makes and ends so many sandboxes, one after the other, as a member would. */
async function change(store: FleetStore, count: number): Promise<void> {
  const own = new OwnSandboxes({
    store,
    node: "node-0000",
    membership: { check: { key: "nodes/node-0000", createRevision: 0 } },
    known: { entries: () => new Map().entries(), revision: 0 },
    sandboxes: {} as Sandboxes,
    clock: fakeClock(),
    log,
  });
  for (let made = 0; made < count; made += 1) {
    const sandbox = {
      id: `i${randomBytes(10).toString("hex")}`,
      owner: "0f1e2d3c-4b5a-4968-8776-655443322110",
      template: "code-interpreter-v1",
      backend: "linux-namespaces",
      startedAtMs: Date.now(),
      accessToken: randomBytes(32).toString("base64url"),
      limits: { cpuCount: 1, memoryMiB: 512 },
    } as unknown as SandboxRecord;
    await own.add(sandbox, { admit: undefined, signal: new AbortController().signal });
    await own.remove(sandbox.id);
  }
}
