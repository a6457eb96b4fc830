import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { systemClock } from "@coppice/core";
import { fakeClock } from "@coppice/core/testing";
import { z } from "zod";
import { EtcdClient } from "./etcd/etcd-client.js";
import { EtcdStore } from "./etcd/etcd-store.js";
import { SqliteStore } from "./sqlite/sqlite-store.js";
import { type Cluster, ETCDS, startEtcd } from "../testing/start-etcd.js";
import { namesOf, storeCases, take } from "../testing/store-cases.js";
import type { FleetStore, Lease, Update } from "./fleet-store.js";

for (const { name, program, skip } of ETCDS)
  describe(`the store of a fleet in ${name}`, { skip, concurrency: 1 }, () => {
    let etcd: Cluster;
    let client: EtcdClient;
    before(async () => {
      etcd = await startEtcd({ program });
    });
    after(async () => etcd[Symbol.asyncDispose]());
    const open = async (watchSilenceMs = 60_000): Promise<FleetStore> => {
      client = new EtcdClient({ endpoints: etcd.endpoints, login: undefined, tls: {}, timeoutMs: 5000 });
      return new EtcdStore({ client, prefix: "/coppice/", watchSilenceMs });
    };
    storeCases(open);

    it("a watch that begins before what etcd has kept is told so", async () => {
      const store = await open();
      const revision = String(await store.commit([], [{ put: "x/y", value: "1" }]));
      await client.call("kv/compaction", { revision }, { schema: z.unknown(), canRepeat: true });
      const updates: Update[] = [];
      for await (const update of store.watch("x/", 1, new AbortController().signal)) updates.push(update);
      assert.deepEqual(updates, [{ kind: "compacted" }]);
      await store.close();
    });

    it("values of somebody else that are too large for one answer are left out; the others are found", async () => {
      const store = await open();
      const { revision } = await store.list("big/");
      const stop = new AbortController();
      const watched = take(store.watch("big/", revision, stop.signal), 22);
      for (let at = 0; at < 5; at += 1) {
        const value = "x".repeat(2 ** 20);
        await store.commit([], [{ put: `big/${at}`, value }]);
        await store.commit([], [{ put: `big/${at}${"k".repeat(2 ** 11)}`, value: "long" }]);
        await store.commit(
          [],
          [
            { put: `big/${at}b`, value: "x".repeat(2 ** 17) },
            { put: `big/${at}c`, value: "own" },
          ],
        );
      }
      await store.commit([], [{ put: "big/last", value: "1" }]);
      await store.commit([], [{ put: "big/last", value: "2" }]);
      const { entries } = await store.list("big/");
      const own = [...entries.keys()]
        .slice(1)
        .flatMap((at) => (at % 2 === 0 ? [] : [`big/${(at - 1) / 2}b`, `big/${(at - 1) / 2}c`]));
      assert.deepEqual(
        entries.map(({ key }) => key),
        [...own, "big/last"],
      );
      // Those that are left out are told as gone.
      const changes = await watched;
      assert.equal(changes.filter(({ entry }) => entry !== undefined).length, 12);
      assert.deepEqual(namesOf(changes.slice(-1)), ["big/last=2"]);
      stop.abort();
      await store.close();
    });

    it("a watch that catches up has every change of many large commits once, in order", async () => {
      const store = await open();
      const { revision } = await store.list("late/");
      for (let at = 0; at < 30; at += 1)
        await store.commit(
          [],
          Array.from({ length: 90 }, (_, one) => ({ put: `late/${one}`, value: `${at}`.padEnd(4096) })),
        );
      const stop = new AbortController();
      const seen: string[] = [];
      const revisions: number[] = [];
      for await (const update of store.watch("late/", revision, stop.signal)) {
        if (update.kind !== "changes") break;
        revisions.push(update.revision);
        for (const { key, entry } of update.changes) seen.push(`${entry?.value.trim()} ${key}`);
        if (seen.length >= 30 * 90) break;
      }
      stop.abort();
      const names = Array.from({ length: 90 }, (_, one) => `late/${one}`);
      assert.deepEqual(
        seen,
        Array.from({ length: 30 }, (_, at) => names.map((key) => `${at} ${key}`)).flat(),
      );
      assert.ok(revisions.length > 10, `it came in ${revisions.length} parts`);
      assert.deepEqual(
        revisions,
        revisions.toSorted((one, other) => one - other),
      );
      // One that goes on after any part misses nothing: each tells of whole commits alone.
      const again = (await take(store.watch("late/", revisions[3] ?? 0, new AbortController().signal), 90))
        .length;
      assert.ok(again >= 90);
      await store.close();
    });

    it("a watch goes on where it was, when its connection was silent and when etcd was away", async () => {
      const store = await open(100);
      const { revision } = await store.list("z/");
      const stop = new AbortController();
      const taken = take(store.watch("z/", revision, stop.signal), 3);
      await store.commit([], [{ put: "z/one", value: "1" }]);
      await pause(300);
      await store.commit([], [{ put: "z/one", value: "2" }]);
      await etcd.members[0]?.kill();
      await etcd.members[0]?.start();
      await store.commit([], [{ delete: "z/one" }]);
      assert.deepEqual(namesOf(await taken), ["z/one=1", "z/one=2", "z/one=(deleted)"]);
      stop.abort();
      await store.close();
    });
  });

describe("the store of a fleet in an SQLite file", { concurrency: 1 }, () => {
  let directory: string;
  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
  });
  after(async () => rm(directory, { recursive: true }));
  const open = async (keptRevisions = 1000): Promise<FleetStore> =>
    new SqliteStore({ path: join(directory, "fleet.sqlite"), clock: systemClock, pollMs: 20, keptRevisions });
  storeCases(open);

  it("a watch that is too far behind is told so", async () => {
    const store = await open(3);
    for (const value of ["1", "2", "3", "4", "5"]) await store.commit([], [{ put: "x/y", value }]);
    const updates: Update[] = [];
    for await (const update of store.watch("x/", 1, new AbortController().signal)) updates.push(update);
    assert.deepEqual(updates, [{ kind: "compacted" }]);
    await store.close();
  });

  it("leases end by a clock that nobody sets, and after a restart of the host by the wall clock", async () => {
    const clock = fakeClock();
    let upMs = 50_000;
    const path = join(directory, "leases.sqlite");
    const store = new SqliteStore({ path, clock, monotonic: () => upMs, pollMs: 20, keptRevisions: 10 });
    const has = async (key: string) => (await store.get(key)) !== undefined;
    const put = async (key: string, lease: Lease) => store.commit([], [{ put: key, value: "", lease }]);
    const [first, second] = [await store.grant(10_000), await store.grant(10_000)];
    await put("first", first);
    await put("second", second);
    await clock.advance(3_600_000);
    assert.ok((await has("first")) && (await store.renew(first)), "the wall clock jumped ahead");
    upMs += 10_000;
    assert.ok(!(await has("second")) && !(await store.renew(second)), "its time is over");
    const third = await store.grant(20_000);
    await put("third", third);
    upMs = 1_000;
    assert.ok(await has("third"), "the host has started again meanwhile");
    await clock.advance(20_000);
    assert.ok(!(await has("third")));
    await store.close();
  });
});
