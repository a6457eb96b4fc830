import assert from "node:assert/strict";
import { it } from "node:test";
import { describeEnd } from "../model/describe-end.js";
import { fails, startDomain, base, assertNothingLeft, FragileLedger } from "../testing/start-domain.js";
import { World } from "../testing/crashing-server.js";

it("a sandbox that ends by itself is gone at once, is reported with its reason, and leaves nothing", async (context) => {
  const ledger = new FragileLedger();
  const domain = await startDomain(context, { script: { pausing: {} }, ledger });
  const { sandboxes, backend } = domain;
  const told: unknown[] = [];
  domain.events.add((events) => void told.push(...events.map(({ type, detail }) => [type, detail.reason])));
  domain.tellEvents();
  for (const [reason, words] of [
    ["out of memory", /^it ran out of memory at /],
    ["backend lost", /^its backend lost it at /],
  ] as const) {
    for (const isPaused of [false, true]) {
      told.length = 0;
      const sandbox = await sandboxes.create(base);
      const { id } = sandbox.record;
      if (isPaused) await sandboxes.pause(id);
      const ended = new Promise((resolve) => sandbox.ended.addEventListener("abort", resolve));
      backend.sandboxes.get(id)?.lose(reason);
      await ended;
      assert.equal(sandbox.ended.reason, reason);
      assert.throws(() => sandboxes.get(id), fails("not_found", /sandbox not found$/));
      await assert.rejects(
        sandboxes.kill(id).then(() => sandboxes.kill(id)),
        fails("not_found", /not found/),
      );
      const end = await sandboxes.endOf(id);
      assert.ok(end);
      assert.equal(end.reason, reason);
      assert.match(describeEnd(end), words);
      await domain.events.caughtUp();
      assert.deepEqual(told.at(-1), ["killed", reason]);
    }
  }
  assert.equal(await domain.metric("ended_total"), 4);
  await assertNothingLeft(domain);
});

it("the server that adopted a sandbox notices that it ends by itself", async () => {
  const world = new World();
  const first = await world.start();
  const { id } = (await first.domain.sandboxes.create(base)).record;
  first.crash();
  const next = await world.start();
  const adopted = next.domain.sandboxes.get(id);
  const ended = new Promise((resolve) => adopted.ended.addEventListener("abort", resolve));
  world.backend.sandboxes.get(id)?.lose("out of memory");
  await ended;
  await next.domain.stop();
  assert.equal((await world.ledger.findEnded(id))?.reason, "out of memory");
  assert.deepEqual([...world.backend.sandboxes.keys()], []);
});
