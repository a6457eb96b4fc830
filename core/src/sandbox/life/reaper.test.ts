import assert from "node:assert/strict";
import { it } from "node:test";
import { fakeClock } from "../../testing/fake-clock.js";
import { Reaper } from "./reaper.js";

it("a hundred thousand deadlines cost one timer", async () => {
  const clock = fakeClock(0);
  const expired: string[] = [];
  const reaper = new Reaper(clock, (id) => expired.push(id));
  reaper.start();
  for (let index = 0; index < 100_000; index += 1)
    reaper.set(`s${index}`, 1_000_000 + ((index * 7919) % 100_000));
  for (let index = 0; index < 100_000; index += 1) reaper.set(`s${index}`, 2_000_000 + index);
  for (let index = 1; index < 100_000; index += 1) reaper.delete(`s${index}`);
  assert.equal(clock.pending, 1);
  await clock.advance(2_000_000);
  assert.deepEqual(expired, ["s0"]);
  assert.equal(clock.pending, 0);
});

it("an id expires at its deadline, not before, and where it was moved to", async () => {
  const clock = fakeClock(0);
  const expired: [string, number][] = [];
  const reaper = new Reaper(clock, (id) => expired.push([id, clock.now()]));
  reaper.set("early", 10);
  reaper.start();
  reaper.set("later", 100);
  reaper.set("nearer", 100);
  reaper.set("never", 100);
  reaper.set("farther", 20);
  reaper.set("gone", 30);
  reaper.set("nearer", 50);
  reaper.set("never", undefined);
  reaper.set("farther", 200);
  reaper.delete("gone");
  await clock.advance(9);
  assert.deepEqual(expired, []);
  await clock.advance(1000);
  assert.deepEqual(expired, [
    ["early", 10],
    ["nearer", 50],
    ["later", 100],
    ["farther", 200],
  ]);
  assert.equal(clock.pending, 0);
});

it("a deadline earlier than the armed one is met", async () => {
  const clock = fakeClock(0);
  const expired: [string, number][] = [];
  const reaper = new Reaper(clock, (id) => expired.push([id, clock.now()]));
  reaper.start();
  reaper.set("later", 100);
  reaper.set("earlier", 50);
  await clock.advance(60);
  assert.deepEqual(expired, [["earlier", 50]]);
  reaper.delete("later");
  assert.equal(clock.pending, 0);
});

it("many that expire at one moment all expire, a slice at a time", async () => {
  const clock = fakeClock(0);
  let expired = 0;
  const slices: number[] = [];
  const reaper = new Reaper(clock, () => (expired += 1));
  for (let index = 0; index < 1000; index += 1) reaper.set(`s${index}`, 5);
  reaper.start();
  const after = clock.after.bind(clock);
  clock.after = (delayMs, callback) => {
    slices.push(expired);
    return after(delayMs, callback);
  };
  await clock.advance(5);
  assert.equal(expired, 1000);
  assert.ok(slices.length > 10, `taken in ${slices.length} slices`);
});

it("a stopped reaper leaves no timer", async () => {
  const clock = fakeClock(0);
  const reaper = new Reaper(clock, () => assert.fail("expired after stop"));
  reaper.start();
  reaper.set("one", 10);
  reaper.stop();
  assert.equal(clock.pending, 0);
  await clock.advance(100);
});
