import assert from "node:assert/strict";
import { it } from "node:test";
import type { ResourceShortage } from "../contract/process.js";
import { describeEnd } from "../model/describe-end.js";
import {
  fails,
  startDomain,
  base,
  MINUTE_MS,
  assertNothingLeft,
  FragileLedger,
} from "../testing/start-domain.js";
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

it("a sandbox that ends for a lack that its backend has told counts once", async (context) => {
  let tell: ((shortage: ResourceShortage) => void) | undefined;
  const shortages = { watch: (onShortage: typeof tell) => (tell = onShortage), since: () => undefined };
  const domain = await startDomain(context, { script: { shortages } });
  const events: unknown[] = [];
  domain.events.add(
    (happened) => void events.push(...happened.map(({ type, detail }) => [type, detail.reason])),
  );
  domain.tellEvents();
  const sandbox = await domain.sandboxes.create(base);
  const ended = new Promise((resolve) => sandbox.ended.addEventListener("abort", resolve));
  tell?.({ resource: "memory", limit: "1024 MiB" });
  domain.backend.sandboxes.get(sandbox.record.id)?.lose("out of memory");
  await ended;
  assert.equal(await domain.metric("shortages_total"), 1);
  await domain.sandboxes.create(base);
  for (const laterMs of [0, 59_999, 1]) {
    await domain.clock.advance(laterMs);
    tell?.({ resource: "processes", limit: "64" });
  }
  await domain.events.caughtUp();
  const exhausted = ["exhausted", "processes: limit 64"];
  assert.deepEqual(events.slice(-2), [exhausted, exhausted], "one a minute is told");
  assert.equal(events.filter((one) => JSON.stringify(one) === JSON.stringify(exhausted)).length, 2);
  assert.equal(await domain.metric("shortages_total"), 4, "each counts");
});

it("shortages of very many tenants are counted together, and apart from every tenant's own", async (context) => {
  let tell: ((shortage: ResourceShortage) => void) | undefined;
  const shortages = { watch: (onShortage: typeof tell) => (tell = onShortage), since: () => undefined };
  const domain = await startDomain(context, { script: { shortages }, settings: { tenantsInMetrics: 3 } });
  for (const tenant of ["other", "one", "two", "three", "four", "other"]) {
    const { record } = await domain.sandboxes.create({ ...base, owner: tenant });
    tell?.({ resource: "disk", limit: "1 GiB" });
    await domain.sandboxes.kill(record.id);
  }
  const counted = (tenant: string) =>
    domain.metric("shortages_total", ({ labels }) => labels["tenant"] === tenant);
  assert.deepEqual([await counted("other"), await counted("one"), await counted("")], [2, 1, 2]);
});

it("what tenants use is summed up, and processor time stays counted when sandboxes end", async (context) => {
  let cpuSeconds = 0;
  const domain = await startDomain(context, {
    script: {
      usage: () => ({ cpuSeconds, memoryUsedBytes: 100, diskUsedBytes: 10 }),
      pausing: {},
      stopping: {},
    },
    settings: { tenantsInMetrics: 1 },
  });
  const { sandboxes } = domain;
  const read = async (tenant: string): Promise<readonly number[]> => {
    const own = (name: string) => domain.metric(name, ({ labels }) => labels["tenant"] === tenant);
    // A scrape reads it first, and it fills the others.
    await own("of_tenant");
    return [
      await own("used_cpu_seconds_total"),
      await own("used_memory_bytes"),
      await own("used_disk_bytes"),
    ];
  };
  const [acme, other, more] = [
    await sandboxes.create({ ...base, owner: "acme" }),
    await sandboxes.create({ ...base, owner: "other" }),
    await sandboxes.create({ ...base, owner: "more" }),
  ];
  assert.deepEqual(await read("acme"), [0, 0, 0], "nobody has measured it");
  cpuSeconds = 2;
  for (const sandbox of [acme, other, more]) await sandbox.stats();
  assert.deepEqual(await read("acme"), [2, 100, 10]);
  assert.deepEqual(await read(""), [4, 200, 20], "all others");
  assert.deepEqual(await read("acme"), [2, 100, 10], "counted once");

  cpuSeconds = 5;
  await sandboxes.pause(acme.record.id, { keepsMemory: false });
  assert.deepEqual(await read("acme"), [5, 0, 10], "until its processes were ended; its files stay");
  cpuSeconds = 1;
  await sandboxes.resume(acme.record.id, MINUTE_MS);
  await sandboxes.get(acme.record.id).stats();
  assert.deepEqual(await read("acme"), [6, 100, 10], "its processes began anew");

  cpuSeconds = 1.5;
  await sandboxes.kill(acme.record.id);
  assert.deepEqual(await read("acme"), [6.5, 0, 0], "what was used since the last sample, too");
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
