import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { describe, it } from "node:test";
import { setImmediate } from "node:timers/promises";
import { queryObjects } from "node:v8";
import type { Clock } from "./clock.js";
import { abortAfter, fulfilledWithin, sleep, unlessAborted, within } from "./time.js";

const never = new Promise<never>(() => undefined);
const reason = new Error("given up");

class StoppedClock implements Clock {
  readonly armed = new Set<() => void>();

  now(): number {
    return 0;
  }

  after(_delayMs: number, callback: () => void): () => void {
    this.armed.add(callback);
    return () => this.armed.delete(callback);
  }

  /** Lets all time pass. */
  runOut(): void {
    for (const callback of this.armed) callback();
  }
}

describe("waiting", () => {
  it("for a step ends with the step, its timeout or its signal, and aborts a step that is left behind", async () => {
    const clock = new StoppedClock();
    const giving = new AbortController();
    const { signal } = giving;
    const limit = { clock, timeoutMs: 10, signal };
    assert.equal(await within(() => "done", limit), "done");
    const left: AbortSignal[] = [];
    const stays = (until: AbortSignal): Promise<never> => {
      left.push(until);
      // The result is the signal's reason, not the error that the step throws for it.
      return new Promise((_, reject) => until.addEventListener("abort", () => reject(new Error("cut"))));
    };
    const overdue = (): Error => new Error("too late");
    const late = assert.rejects(within(stays, limit), /did not end within 10 ms/);
    const ownError = assert.rejects(within(stays, { ...limit, overdue }), /too late/);
    clock.runOut();
    await Promise.all([late, ownError]);
    const aborted = assert.rejects(within(stays, limit), reason);
    giving.abort(reason);
    await aborted;
    await assert.rejects(within(stays, limit), reason);
    assert.equal(left.length, 3, "a step is not begun after the signal");
    assert.ok(left.every((one) => one.aborted));
    assert.deepEqual([clock.armed.size, getEventListeners(signal, "abort")], [0, []]);
  });

  it("for a signal leaves no listener", async () => {
    const giving = new AbortController();
    const { signal } = giving;
    assert.equal(await unlessAborted(signal, () => 1), 1);
    await assert.rejects(
      unlessAborted(signal, () => assert.fail("broken")),
      /broken/,
    );
    const aborted = assert.rejects(
      unlessAborted(signal, () => never),
      reason,
    );
    giving.abort(reason);
    await aborted;
    await assert.rejects(
      unlessAborted(signal, () => assert.fail("not to be run")),
      reason,
    );
    assert.deepEqual(getEventListeners(signal, "abort"), []);
  });

  it("for time, and for a promise, leaves no timer", async () => {
    const clock = new StoppedClock();
    const giving = new AbortController();
    assert.equal(await fulfilledWithin(setImmediate(), { clock, timeoutMs: 10 }), true);
    const isFulfilled = fulfilledWithin(never, { clock, timeoutMs: 10 });
    const slept = sleep(clock, 10, giving.signal);
    clock.runOut();
    assert.equal(await isFulfilled, false);
    await slept;
    const aborted = assert.rejects(sleep(clock, 10, giving.signal), reason);
    giving.abort(reason);
    await aborted;
    assert.deepEqual([clock.armed.size, getEventListeners(giving.signal, "abort")], [0, []]);
  });

  it("for the same promise again and again leaves nothing with it", async () => {
    const clock = new StoppedClock();
    const { promise, reject } = Promise.withResolvers<void>();
    const wait = async (): Promise<void> => {
      const isFulfilled = fulfilledWithin(promise, { clock, timeoutMs: 10 });
      clock.runOut();
      assert.equal(await isFulfilled, false);
    };
    await wait();
    const before = Number(queryObjects(Promise));
    for (let round = 0; round < 1_000; round++) await wait();
    const left = Number(queryObjects(Promise)) - before;
    assert.ok(left < 100, `${left} promises are left`);
    const waiting = assert.rejects(fulfilledWithin(promise, { clock, timeoutMs: 10 }), reason);
    reject(reason);
    await waiting;
    await assert.rejects(fulfilledWithin(promise, { clock, timeoutMs: 10 }), reason);
    assert.equal(clock.armed.size, 0);
  });

  it("is cut by a controller that aborts late, unless what it limits is over", () => {
    const clock = new StoppedClock();
    const [kept, cut] = [new AbortController(), new AbortController()];
    const limit = { clock, timeoutMs: 10, overdue: () => reason };
    {
      using _over = abortAfter(kept, limit);
      assert.equal(clock.armed.size, 1);
    }
    using _late = abortAfter(cut, limit);
    clock.runOut();
    assert.deepEqual([kept.signal.aborted, cut.signal.reason], [false, reason]);
  });
});
