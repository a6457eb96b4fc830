import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import type { TestServer } from "@coppice/core/testing";
import { Sandbox, SandboxError, SandboxNotFoundError } from "e2b";
import { API_KEY } from "../../harness/server/api-key.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

describe(
  "snapshots and forks through the e2b SDK",
  { skip: missingForNamespaces(), timeout: 240_000 },
  () => {
    let server: TestServer;

    before(async () => {
      server = await startFullServer({ backend: "linux-namespaces" });
      pointSdkAt(server.url);
    });
    after(() => server.stop());

    it("keeps files beyond the life of the sandbox, under a name and without one", async () => {
      const source = await Sandbox.create();
      await source.files.write("note.txt", "first");
      await source.commands.run("echo tool > /usr/local/bin/tool", { user: "root" });
      await source.commands.run("sleep 1000", { background: true });
      const named = await source.createSnapshot({ name: "with-note" });
      assert.equal(named.snapshotId, "with-note:default");
      assert.deepEqual(named.names, ["with-note"]);
      await source.files.write("note.txt", "second");
      const plain = await source.createSnapshot();
      assert.match(plain.snapshotId, /^s[a-z0-9]{20}:default$/);
      await source.kill();

      const [one, two] = await Promise.all([Sandbox.create("with-note"), Sandbox.create(plain.snapshotId)]);
      assert.equal(await one.files.read("note.txt"), "first");
      assert.equal(await two.files.read("note.txt"), "second");
      assert.equal((await one.commands.run("cat /usr/local/bin/tool; pgrep sleep || true")).stdout, "tool\n");

      const pages = Sandbox.listSnapshots({ limit: 1 });
      const listed: string[] = [];
      while (pages.hasNext) listed.push(...(await pages.nextItems()).map(({ snapshotId }) => snapshotId));
      assert.deepEqual(listed, [plain.snapshotId, "with-note:default"]);
      const ofSource = await Sandbox.listSnapshots({ sandboxId: source.sandboxId }).nextItems();
      assert.equal(ofSource.length, 2);
      assert.deepEqual(await Sandbox.listSnapshots({ sandboxId: one.sandboxId }).nextItems(), []);

      const tagged = await one.createSnapshot({ name: "with-note:v2" });
      assert.deepEqual([tagged.snapshotId, tagged.names], ["with-note:v2", ["with-note"]]);
      const byName = async (name: string): Promise<unknown> => {
        const headers = { "x-api-key": API_KEY };
        const answer = await fetch(`${server.url}/snapshots?name=${name}`, { headers });
        return ((await answer.json()) as { snapshotID: string }[]).map(({ snapshotID }) => snapshotID);
      };
      assert.deepEqual(await byName("with-note"), ["with-note:v2"], "the newest, whatever its tag");
      assert.deepEqual(await byName("with-note:default"), ["with-note:default"]);
      assert.equal(await Sandbox.deleteSnapshot("with-note:v2"), true);
      assert.deepEqual(await byName("with-note"), ["with-note:default"]);

      assert.equal(await Sandbox.deleteSnapshot("with-note:default"), true);
      assert.equal(await Sandbox.deleteSnapshot("with-note:default"), false);
      assert.equal(await one.files.read("note.txt"), "first");
      await assert.rejects(Sandbox.create("with-note"), SandboxError);
      assert.equal(await Sandbox.deleteSnapshot(plain.snapshotId), true);
      await Promise.all([one.kill(), two.kill()]);
    });

    it("removes several at once, while sandboxes that began with them end", async () => {
      const source = await Sandbox.create();
      const taken: string[] = [];
      for (let count = 0; count < 8; count += 1) taken.push((await source.createSnapshot()).snapshotId);
      const copies = await Promise.all(taken.slice(0, 4).map((id) => Sandbox.create(id)));
      const removed = await Promise.all([
        ...taken.map((id) => Sandbox.deleteSnapshot(id)),
        ...copies.map((copy) => copy.kill()),
      ]);
      assert.deepEqual(new Set(removed), new Set([true]));
      await source.kill();
    });

    it("forks a sandbox into others that each go their own way", async () => {
      const source = await Sandbox.create({ metadata: { kind: "source" }, envs: { GLOBAL: "for all" } });
      await source.files.write("state", "shared");
      const forks = await source.fork({ count: 2 });
      const made = forks.flatMap((one) => (one instanceof Sandbox ? [one] : []));
      assert.equal(made.length, 2, JSON.stringify(forks));
      for (const [index, fork] of made.entries()) {
        assert.equal(await fork.files.read("state"), "shared");
        assert.equal((await fork.commands.run('echo "$GLOBAL"')).stdout, "for all\n");
        const { metadata, templateId, name } = await fork.getInfo();
        assert.deepEqual([metadata, templateId, name], [{ kind: "source" }, "base", "base"]);
        await fork.files.write("state", `own ${index}`);
      }
      assert.equal(await source.files.read("state"), "shared");
      assert.deepEqual(await Sandbox.listSnapshots().nextItems(), []);
      await Promise.all([source, ...made].map((one) => one.kill()));
      await assert.rejects(source.fork(), SandboxNotFoundError);
    });
  },
);
