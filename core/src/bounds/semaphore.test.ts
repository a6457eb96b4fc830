import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { it } from "node:test";
import { setImmediate } from "node:timers/promises";
import { Semaphore } from "./semaphore.js";

it("holders beyond the permits wait in order, and waiters beyond the limit are refused", async () => {
  const semaphore = new Semaphore(1, { queueLimit: 2 });
  const release = await semaphore.acquire();
  const order: string[] = [];
  const waiting = ["first", "second"].map(async (name) => {
    const leave = await semaphore.acquire();
    order.push(name);
    return leave;
  });
  await assert.rejects(semaphore.acquire(), { code: "unavailable" });
  release();
  // A second release must not let another one in.
  release();
  await setImmediate();
  assert.deepEqual(order, ["first"]);
  (await waiting[0])?.();
  (await waiting[1])?.();
  assert.deepEqual(order, ["first", "second"]);
});

it("an aborted waiter leaves the queue, and no listener stays on a signal", async () => {
  const semaphore = new Semaphore(1, { queueLimit: 1 });
  const release = await semaphore.acquire();
  const givingUp = new AbortController();
  const reason = new Error("given up");
  const waiting = semaphore.acquire(givingUp.signal);
  givingUp.abort(reason);
  await assert.rejects(waiting, reason);
  const { signal } = new AbortController();
  const next = semaphore.acquire(signal);
  release();
  (await next)();
  assert.deepEqual(getEventListeners(signal, "abort"), []);
});

it("what is run one at a time begins in its order, whatever became of the one before", async () => {
  const queue = new Semaphore();
  const order: string[] = [];
  const failed = queue.run(async () => {
    await setImmediate();
    order.push("first");
    throw new Error("broken");
  });
  const done = queue.run(() => order.push("second"));
  assert.deepEqual(order, []);
  await assert.rejects(failed, /broken/);
  assert.equal(await done, 2);
  assert.deepEqual(order, ["first", "second"]);
});

it("an owner with many calls does not keep those of others waiting", async () => {
  const semaphore = new Semaphore(2);
  const order: string[] = [];
  const releases: (() => void)[] = [];
  const enter = async (owner: string): Promise<void> => {
    releases.push(await semaphore.acquire(undefined, owner));
    order.push(owner);
  };
  const entered = ["busy", "busy", "busy", "busy", "new", "other", "new"].map(enter);
  while (order.length < entered.length) {
    await setImmediate();
    releases.shift()?.();
  }
  assert.deepEqual(order, ["busy", "busy", "busy", "new", "other", "busy", "new"]);
  releases.forEach((release) => release());
  (await semaphore.acquire())();
});
