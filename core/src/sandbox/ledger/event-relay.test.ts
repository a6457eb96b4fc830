import assert from "node:assert/strict";
import { it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { base, startDomain } from "../testing/start-domain.js";

it("events wait for a failing recorder up to a limit, and dropped ones are counted", async (context) => {
  const domain = await startDomain(context, { settings: { maximumOutbox: 5 } });
  const { sandboxes, clock, ledger } = domain;
  let isBroken = true;
  const told: string[] = [];
  domain.events.add((events) => {
    if (isBroken) throw new Error("disk full");
    told.push(...events.map(({ sandboxId, type }) => `${type} ${sandboxId}`));
  });
  domain.tellEvents();
  const expected: string[] = [];
  const live = async (): Promise<void> => {
    const { id } = (await sandboxes.create(base)).record;
    await sandboxes.kill(id);
    expected.push(`created ${id}`, `killed ${id}`);
    await domain.events.caughtUp();
  };
  assert.equal(await domain.metric("events_behind_seconds"), 0);
  await live();
  await clock.advance(90_000);
  await live();
  assert.equal((await ledger.outbox(100)).length, 4);
  assert.equal(await domain.metric("events_behind_seconds"), 90, "as old as the oldest");
  assert.equal(await domain.metric("events_dropped_total"), 0);
  await live();
  await live();
  assert.equal((await ledger.outbox(100)).length, 5);
  assert.equal(await domain.metric("events_dropped_total"), 3);

  isBroken = false;
  await clock.advance(5000);
  await domain.events.caughtUp();
  assert.deepEqual(told, expected.slice(3), "the newest, in their order");
  assert.deepEqual(await ledger.outbox(1), []);
  assert.equal(await domain.metric("events_behind_seconds"), 0);
});

it("events of a burst are handed over together, in their order", async (context) => {
  const domain = await startDomain(context);
  const told: string[][] = [];
  domain.events.add((events) => void told.push(events.map(({ sandboxId, type }) => `${type} ${sandboxId}`)));
  domain.tellEvents();
  const expected: string[] = [];
  for (let count = 0; count < 10; count += 1) {
    const { id } = (await domain.sandboxes.create(base)).record;
    expected.push(`created ${id}`);
  }
  const handedOver = told.length;
  await domain.events.caughtUp();
  assert.deepEqual(told.flat(), expected);
  assert.ok(handedOver < expected.length, `${handedOver} times during ${expected.length} creations`);
  const { id } = (await domain.sandboxes.create(base)).record;
  // Without anybody who waits for it.
  while (!told.flat().includes(`created ${id}`)) await sleep(5);
});
