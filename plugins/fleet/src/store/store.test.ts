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
