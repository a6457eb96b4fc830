import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import { describe, it } from "node:test";
import { fakeClock, type FakeClock } from "@coppice/core/testing";
import { SqliteStore } from "../store/sqlite/sqlite-store.js";
import { type FleetStore, StoreUnavailable } from "../store/fleet-store.js";
import { Fence } from "./fence.js";
import { FleetSecrets } from "../trust/fleet-secrets.js";
import { Membership } from "./membership.js";
import { nodeOf } from "./node-record.js";

const LEASE_MS = 10_000;
const secrets = new FleetSecrets({ secret: "s".repeat(32) });

interface Fleet extends AsyncDisposable {
  readonly clock: FakeClock;
  readonly store: FleetStore;
  /** False: the store cannot be reached by members. */
  isReachable: boolean;
  /** Renewals that get no answer before they are given up. */
  hangingRenewals: number;
  /** Time that a renewal's answer takes. */
  slowMs: number;
  /** True: members find out that nobody can reach it. */
  lacksMajority: boolean;
  member(node: string, identity?: string): Watched;
}

interface Watched {
  readonly membership: Membership;
  readonly happened: string[];
}

async function openFleet(): Promise<Fleet> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
  const clock = fakeClock();
  const store = new SqliteStore({
    path: join(directory, "fleet.sqlite"),
    clock,
    monotonic: () => clock.now(),
    pollMs: 5,
    keptRevisions: 100,
  });
  const started: Membership[] = [];
  const fleet: Fleet = {
    clock,
    store,
    isReachable: true,
    hangingRenewals: 0,
    slowMs: 0,
    lacksMajority: false,
    member(node, identity = node) {
      const reachable: FleetStore = new Proxy(store, {
        get(target, name: keyof FleetStore) {
          const method = target[name] as (...args: unknown[]) => unknown;
          return async (...args: unknown[]) => {
            if (name === "lacksMajority") return fleet.lacksMajority;
            if (name === "renew" && fleet.hangingRenewals > 0) {
              fleet.hangingRenewals -= 1;
              const signal = args[1] as AbortSignal;
              await once(signal, "abort");
              signal.throwIfAborted();
            }
            if (!fleet.isReachable) throw new StoreUnavailable("unreachable");
            const answer = method.apply(target, args);
            if (name === "renew" && fleet.slowMs > 0)
              await new Promise<void>((resolve) => clock.after(fleet.slowMs, resolve));
            return answer;
          };
        },
      });
      const membership = new Membership({
        store: reachable,
        node,
        identity: () => identity,
        run: "run",
        secrets,
        address: () => `http://${node}`,
        version: "1",
        memoryMiB: 1024,
        leaseMs: LEASE_MS,
        restartMs: 6 * LEASE_MS,
        clock,
        monotonic: () => clock.now(),
        log: { info() {}, warn() {}, error() {} },
      });
      const happened: string[] = [];
      membership.onJoined(() => void happened.push("joined"));
      membership.onFenced(() => void happened.push("fenced"));
      started.push(membership);
      return { membership, happened };
    },
    async [Symbol.asyncDispose]() {
      fleet.isReachable = true;
      for (const membership of started) await membership.stop(false);
      await store.close();
      await rm(directory, { recursive: true });
    },
  };
  return fleet;
}

/** Time passes in steps, so that renewals have their answers between them. */
async function pass(clock: FakeClock, ms: number): Promise<void> {
  for (let passed = 0; passed < ms; passed += 500) {
    await clock.advance(500);
    for (let turn = 0; turn < 5; turn += 1) await setImmediate();
  }
}

describe("a member of a fleet", () => {
  it("stays one as long as it renews its lease, and leaves at once when it stops", async () => {
    await using fleet = await openFleet();
    const { membership, happened } = fleet.member("one");
    await membership.start();
    await pass(fleet.clock, 5 * LEASE_MS);
    membership.require();
    assert.ok(await fleet.store.get("nodes/one"));
    await membership.stop(false);
    assert.equal(await fleet.store.get("nodes/one"), undefined);
    assert.throws(() => membership.require(), { code: "unavailable" });
    assert.deepEqual(happened, ["joined", "fenced"]);
  });

  it("counts a lease from before its renewal was asked for, however long the answer takes", async () => {
    await using fleet = await openFleet();
    const { membership } = fleet.member("one");
    await membership.start();
    fleet.slowMs = 2000;
    // The question of the first renewal, and its answer; then none is answered any more.
    await pass(fleet.clock, LEASE_MS / 3 + 500);
    const askedMs = fleet.clock.now();
    await pass(fleet.clock, 2500);
    fleet.isReachable = false;
    const answeredAfterMs = fleet.clock.now() - askedMs;
    assert.ok(membership.fence.leftMs > LEASE_MS / 2, "it was renewed");
    assert.ok(
      membership.fence.leftMs <= 0.9 * LEASE_MS - answeredAfterMs + 500,
      String(membership.fence.leftMs),
    );
  });

  it("stops acting before its lease ends where the store cannot be reached, and goes on if it never ended", async () => {
    await using fleet = await openFleet();
    const { membership, happened } = fleet.member("one");
    await membership.start();
    const { check } = membership;
    fleet.isReachable = false;
    await pass(fleet.clock, LEASE_MS - 500);
    assert.throws(() => membership.require(), { code: "unavailable" });
    assert.throws(() => membership.check, { code: "unavailable" });
    assert.ok(await fleet.store.get("nodes/one"), "it was fenced after its lease had ended");
    fleet.isReachable = true;
    await pass(fleet.clock, 500);
    membership.require();
    assert.deepEqual(membership.check, check);
    assert.deepEqual(happened, ["joined", "fenced"]);
  });

  it("stays one when an attempt to renew its lease has no answer: it tries again before the lease ends", async () => {
    await using fleet = await openFleet();
    const { membership, happened } = fleet.member("one");
    await membership.start();
    fleet.hangingRenewals = 1;
    await pass(fleet.clock, 2 * LEASE_MS);
    assert.deepEqual(happened, ["joined"]);
    membership.require();
  });

  it("goes on as long as the store has no majority: nobody can have taken its place", async () => {
    await using fleet = await openFleet();
    const { membership, happened } = fleet.member("one");
    await membership.start();
    fleet.isReachable = false;
    fleet.lacksMajority = true;
    await pass(fleet.clock, 5 * LEASE_MS);
    membership.require();
    fleet.lacksMajority = false;
    await pass(fleet.clock, LEASE_MS);
    assert.throws(() => membership.require(), { code: "unavailable" });
    // Too late to go on: a majority of before may have ended the lease.
    fleet.lacksMajority = true;
    await pass(fleet.clock, LEASE_MS);
    assert.throws(() => membership.require(), { code: "unavailable" });
    assert.deepEqual(happened, ["joined", "fenced"]);
  });

  it("joins again after its lease has ended, as another member to all commits", async () => {
    await using fleet = await openFleet();
    const { membership, happened } = fleet.member("one");
    await membership.start();
    const { check } = membership;
    fleet.isReachable = false;
    await pass(fleet.clock, 2 * LEASE_MS);
    assert.equal(await fleet.store.get("nodes/one"), undefined);
    fleet.isReachable = true;
    await pass(fleet.clock, LEASE_MS);
    membership.require();
    assert.deepEqual(happened, ["joined", "fenced", "joined"]);
    assert.equal(await fleet.store.commit([check], [{ put: "x", value: "of the former member" }]), undefined);
    assert.ok(await fleet.store.commit([membership.check], [{ put: "x", value: "of this one" }]));
  });

  it("has its place kept for a while when it will be back", async () => {
    await using fleet = await openFleet();
    const { membership } = fleet.member("one");
    await membership.start();
    await membership.stop(true);
    await pass(fleet.clock, 2 * LEASE_MS);
    const found = await fleet.store.get("nodes/one");
    assert.ok(found && nodeOf(found, secrets)?.stoppedAtMs !== undefined);
    const again = fleet.member("one");
    await again.membership.start();
    again.membership.require();
    await again.membership.stop(true);
    await pass(fleet.clock, 6 * LEASE_MS);
    assert.equal(await fleet.store.get("nodes/one"), undefined);
  });

  it("joins again at once when somebody removes or replaces its record, though its lease goes on", async () => {
    await using fleet = await openFleet();
    const { membership, happened } = fleet.member("one");
    await membership.start();
    const { value = "" } = (await fleet.store.get("nodes/one")) ?? {};
    for (const change of [{ delete: "nodes/one" }, { put: "nodes/one", value }]) {
      const { check } = membership;
      const revision = await fleet.store.commit([], [change]);
      assert.equal(await fleet.store.commit([check], [{ put: "x", value: "of a member" }]), undefined);
      membership.recordChanged("put" in change ? revision : undefined);
      await pass(fleet.clock, 500);
      membership.require();
      assert.ok(await fleet.store.commit([membership.check], [{ put: "x", value: "of this one" }]));
    }
    assert.deepEqual(happened, ["joined", "fenced", "joined", "fenced", "joined"]);
    // What it has put itself.
    membership.recordChanged((await fleet.store.get("nodes/one"))?.modRevision);
    await pass(fleet.clock, LEASE_MS);
    assert.equal(happened.length, 5);
  });

  it("takes its own name back after a crash, but not that of another server", async () => {
    await using fleet = await openFleet();
    const before = fleet.member("one", "same");
    await before.membership.start();
    const { check } = before.membership;
    await fleet.member("one", "same").membership.start();
    assert.equal(await fleet.store.commit([check], [{ put: "x", value: "of the crashed one" }]), undefined);
    await assert.rejects(
      fleet.member("one", "another").membership.start(),
      /another server .* has the name 'one'/,
    );
  });
});

describe("a fence", () => {
  it("closes by whichever clock is ahead", () => {
    let wallMs = 1000;
    let monotonicMs = 0;
    const fence = new Fence({ clock: { now: () => wallMs }, monotonic: () => monotonicMs, marginMs: 1000 });
    assert.equal(fence.isOpen, false);
    fence.extend(fence.moment(), 10_000);
    assert.equal(fence.leftMs, 9000);
    // The machine slept.
    wallMs += 9000;
    assert.equal(fence.isOpen, false);
    fence.extend(fence.moment(), 10_000);
    // Somebody set the time back, and this process was stopped.
    wallMs -= 3_600_000;
    monotonicMs += 9000;
    assert.equal(fence.isOpen, false);
  });
});
