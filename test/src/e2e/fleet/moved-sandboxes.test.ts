import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { type DockerRegistry, openDockerRegistry, WITHOUT_SMALL_ROOT } from "@coppice/core/testing";
import { type Cluster, reasonWithoutEtcd, startEtcd } from "@coppice/plugin-fleet/testing";
import { Sandbox, Template, Volume } from "e2b";
import { API_KEY } from "../../harness/server/api-key.js";
import { type ImageHub, openImageHub } from "../../harness/server/image-hub.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { type Fleet, startFleet } from "../../harness/server/start-fleet.js";

const skip = reasonWithoutEtcd() || missingForNamespaces() || WITHOUT_SMALL_ROOT;
/** A program with a state in its memory, and one in a file, which is replaced: whoever reads it finds a number. */
const COUNTING =
  "i=0; while :; do i=$((i+1)); echo $i > /home/user/next; mv /home/user/next /home/user/count; sleep 0.05; done";

describe("sandboxes of a server that is drained with --move", { skip, timeout: 280_000 }, () => {
  let etcd: Cluster;
  let fleet: Fleet;
  let hub: ImageHub;
  let registry: DockerRegistry;
  let directory: string;
  let isDown = false;

  const at = (index: number): void => {
    const server = fleet.servers[index];
    pointSdkAt(server?.url ?? "");
    process.env["E2B_VOLUME_API_URL"] = server?.urls["volumes"] ?? "";
  };
  const only = async (index: number): Promise<void> => {
    for (const other of [0, 1]) await fleet.coppice(other === index ? "uncordon" : "cordon", `node${other}`);
  };
  const drain = async (index: number) => {
    const { code, stdout, stderr } = await fleet.coppice("drain", `node${index}`, "--move");
    return { code, stdout: stdout.toString(), stderr };
  };
  const movedFrom = async (id: string): Promise<readonly string[]> => {
    const page = await Sandbox.list({ query: { metadata: { "coppice.movedFrom": id } } }).nextItems();
    return page.map(({ sandboxId }) => sandboxId);
  };
  const numberIn = async (sandbox: Sandbox): Promise<number> => Number(await sandbox.files.read("count"));
  const grows = async (sandbox: Sandbox): Promise<boolean> => {
    const before = await numberIn(sandbox);
    await sandbox.commands.run("sleep 0.3");
    return (await numberIn(sandbox)) > before;
  };

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
    hub = await openImageHub(["library/ubuntu:22.04"]);
    registry = await openDockerRegistry();
    etcd = await startEtcd();
    const registries = hub.registries as { readonly insecure: readonly string[] };
    fleet = await startFleet({
      count: 2,
      store: { etcd: { endpoints: etcd.endpoints } },
      backend: "linux-namespaces",
      dataDir: directory,
      listeners: { volumes: {} },
      settings: {
        templates: {
          registries: { ...registries, insecure: [...registries.insecure, registry.address] },
          sharing: { registry: `${registry.address}/fleet`, interval: "500ms" },
        },
      },
    });
    at(0);
    await Template.build(
      Template()
        .fromImage("ubuntu:22.04")
        .setStartCmd("touch /tmp/started; sleep 600", "[ -f /tmp/started ]"),
      "app",
    );
  });
  after(async () => {
    delete process.env["E2B_VOLUME_API_URL"];
    await fleet[Symbol.asyncDispose]();
    await etcd[Symbol.asyncDispose]();
    if (!isDown) await registry[Symbol.asyncDispose]();
    await hub[Symbol.asyncDispose]();
    await rm(directory, { recursive: true });
  });

  it("go on with their files and options on another server, as often as that is drained, too", async () => {
    await only(0);
    at(0);
    const first = await Sandbox.create("app", {
      metadata: { user: "me" },
      envs: { A: "1" },
      timeoutMs: 600_000,
    });
    await first.files.write("text", "kept");
    const paused = await Sandbox.create("app");
    await paused.files.write("text", "paused");
    await paused.pause();
    assert.deepEqual(await fleet.sandboxes(), [2, 0]);
    let ids = [first.sandboxId, paused.sandboxId];
    for (const [from, to] of [
      [0, 1],
      [1, 0],
    ] as const) {
      await only(from);
      await fleet.coppice("uncordon", `node${to}`);
      const { code, stdout, stderr } = await drain(from);
      assert.equal(code, 0, stdout + stderr);
      const next: string[] = [];
      for (const id of ids) {
        const [, moved = ""] = new RegExp(`^${id} is (\\w+) on 'node${to}' now$`, "m").exec(stdout) ?? [];
        assert.deepEqual(await movedFrom(id), [moved], stdout);
        next.push(moved);
        await assert.rejects(Sandbox.connect(id), /not found/i);
      }
      assert.deepEqual((await fleet.sandboxes())[from], 0);
      ids = next;
    }
    at(1);
    const [firstId = "", pausedId = ""] = ids;
    const info = await Sandbox.getInfo(firstId);
    assert.equal(info.metadata["user"], "me");
    assert.ok(info.endAt.getTime() - Date.now() < 600_000, "its life is no longer than it was");
    assert.equal((await Sandbox.getInfo(pausedId)).state, "paused");
    const sandbox = await Sandbox.connect(firstId);
    assert.equal(await sandbox.files.read("text"), "kept");
    assert.equal((await sandbox.commands.run("echo $A; ls /tmp/started")).stdout, "1\n/tmp/started\n");
    const resumed = await Sandbox.connect(pausedId);
    assert.equal(await resumed.files.read("text"), "paused");
    for (const one of [sandbox, resumed]) await one.kill();
    const snapshots = await fetch(`${fleet.servers[0]?.url}/snapshots`, {
      headers: { "x-api-key": API_KEY },
    });
    assert.deepEqual(await snapshots.json(), []);
    const events = await fetch(`${fleet.servers[0]?.url}/events/sandboxes/${first.sandboxId}`, {
      headers: { "x-api-key": API_KEY },
    });
    assert.match(
      await events.text(),
      /"sandbox\.lifecycle\.killed"[^]*moved|moved[^]*"sandbox\.lifecycle\.killed"/,
    );
  });

  it("stay as they are where they cannot be moved, which is told", async () => {
    await only(0);
    at(0);
    await Volume.create("shared");
    const withVolume = await Sandbox.create("app", { volumeMounts: { "/data": "shared" } });
    const ofHost = await Sandbox.create("base");
    const moving = await Sandbox.create("app");
    const all = [withVolume, ofHost, moving];
    for (const one of all) await one.commands.run(COUNTING, { background: true, timeoutMs: 0 });
    await fleet.coppice("uncordon", "node1");
    const { code, stdout } = await drain(0);
    assert.equal(code, 1, stdout);
    assert.match(stdout, new RegExp(`^${withVolume.sandboxId} stays on 'node0': it has volumes`, "m"));
    assert.match(
      stdout,
      new RegExp(`^${ofHost.sandboxId} stays on 'node0': .*without a built template`, "m"),
    );
    assert.match(stdout, new RegExp(`^${moving.sandboxId} is \\w+ on 'node1' now$`, "m"));
    assert.deepEqual(await fleet.sandboxes(), [2, 1]);
    // The same processes.
    for (const one of [withVolume, ofHost]) {
      assert.ok(await grows(one));
      await one.kill();
    }
    for (const id of await movedFrom(moving.sandboxId)) await Sandbox.kill(id);
  });

  it("stay when no server has room, and without the registry", async () => {
    await only(0);
    at(0);
    const sandbox = await Sandbox.create("app");
    await sandbox.commands.run(COUNTING, { background: true, timeoutMs: 0 });
    const full = await drain(0);
    assert.equal(full.code, 1);
    assert.match(full.stdout, /stays on 'node0': no other server can have it/);
    assert.ok(await grows(sandbox));
    await registry[Symbol.asyncDispose]();
    isDown = true;
    await fleet.coppice("uncordon", "node1");
    const down = await drain(0);
    assert.equal(down.code, 1);
    assert.match(down.stdout, /stays on 'node0': failed to push image/);
    assert.ok(await grows(sandbox));
    assert.deepEqual(await fleet.sandboxes(), [1, 0]);
    await sandbox.kill();
  });
});
