import assert from "node:assert/strict";
import { it } from "node:test";
import { setImmediate } from "node:timers/promises";
import { Semaphore } from "./semaphore.js";
import { fairShare, unfairlyKept, KnownTenants, Shares } from "./tenants.js";

/** Takes one after another, as long as it may; returns how many it has then. */
function takeAll(shares: Shares, tenant: string): number {
  for (let count = 0; ; count += 1) if (shares.take(tenant) !== undefined) return count;
}

it("a tenant that is alone may have all of a bound", () => {
  const tenants = new KnownTenants("the server's own");
  tenants.add(() => ["acme"]);
  const shares = new Shares(8, tenants);
  assert.equal(shares.take("the server's own"), undefined);
  shares.give("the server's own");
  assert.equal(takeAll(shares, "acme"), 8);
  assert.equal(shares.take("acme"), "8");
});

it("of several each may have what it leaves free, so that one without anything is never refused", () => {
  for (const [source, most, expected] of [
    [["acme", "evil"], 100, [50, 25, 13, 6, 3, 2, 1, 0]],
    [["acme", "evil"], 4, [2, 1, 1, 0]],
    [["acme", "evil"], 1, [1, 0]],
    ["any", 8, [4, 2, 1, 1, 0]],
  ] as const) {
    const tenants = new KnownTenants();
    tenants.add(() => source);
    const shares = new Shares(most, tenants);
    const taken = expected.map((_, index) => takeAll(shares, `tenant-${index}`));
    assert.deepEqual(taken, expected);
    shares.give("tenant-0");
    assert.equal(shares.take("another"), undefined, "what is given back is free");
  }
  const tenants = new KnownTenants();
  const bytes = new Shares(1000, tenants);
  assert.equal(bytes.take("of another server", 10), undefined);
  assert.equal(bytes.take("evil", 991), "1000");
  assert.equal(bytes.take("evil", 496), "0 of 1000, the rest is for other tenants");
  assert.equal(bytes.take("evil", 400), undefined);
  assert.equal(bytes.take("evil", 96), "400 of 1000, the rest is for other tenants");
  assert.equal(bytes.take("acme", 240), undefined);
  bytes.give("evil", 400);
  assert.equal(bytes.take("evil", 370), undefined, "a share that was given back can be taken again");
});

it("a tenant that has its share of the permits waits, and others do not wait for it", async () => {
  const tenants = new KnownTenants();
  tenants.add(() => ["acme", "evil"]);
  const semaphore = new Semaphore(4, { queueLimit: 4, tenants });
  const order: string[] = [];
  const releases: (() => void)[] = [];
  const enter = async (owner: string): Promise<void> => {
    releases.push(await semaphore.acquire(undefined, owner));
    order.push(owner);
  };
  const entered = ["evil", "evil", "evil", "evil"].map(enter);
  await setImmediate();
  assert.deepEqual(order, ["evil", "evil"]);
  await assert.rejects(enter("evil"), { code: "unavailable" }, "its share of the queue");
  await Promise.all([enter("acme"), enter("other")]);
  const waiting = enter("acme");
  await setImmediate();
  assert.deepEqual(order.slice(2), ["acme", "other"]);
  while (order.length < 7) {
    releases.shift()?.();
    await setImmediate();
  }
  await Promise.all([...entered, waiting]);
  assert.deepEqual(order.slice(4).toSorted(), ["acme", "evil", "evil"]);
  for (const release of releases) release();
  assert.deepEqual(
    await Promise.all(["a", "b"].map((owner) => semaphore.run(() => owner, undefined, owner))),
    ["a", "b"],
  );
});

it("what is kept is cut where there is most of it", () => {
  assert.equal(fairShare([10, 20, 5], 100), Infinity);
  assert.equal(fairShare([1000, 20, 5], 100), 75);
  assert.equal(fairShare([1000, 900, 10], 100), 45);
  assert.equal(fairShare([1000], 100), 100);
  assert.equal(fairShare([], 0), Infinity);
  assert.equal(fairShare([3, 3], 0), 0);
  const kept = ["e1", "e2", "a1", "e3", "e4", "a2", "o1", "e5"];
  const ownerOf = (one: string): string => one[0] ?? "";
  assert.deepEqual(unfairlyKept(kept, { most: 8, ownerOf }), []);
  assert.deepEqual(unfairlyKept(kept, { most: 7, ownerOf }), ["e1"]);
  assert.deepEqual(unfairlyKept(kept, { most: 4, ownerOf }), ["e1", "e2", "a1", "e3", "e4"]);
});
