import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { Backends } from "@coppice/core/backend";
import type { TestServer } from "@coppice/core/testing";
import { Sandbox, SandboxError, Volume, VolumeError, VolumeNotFoundError } from "e2b";
import { API_KEY } from "../../harness/server/api-key.js";
import { exchange } from "../../harness/clients/exchange.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

describe("volumes through the e2b SDK", { skip: missingForNamespaces(), timeout: 240_000 }, () => {
  let directory: string;
  let server: TestServer;

  const start = async (): Promise<void> => {
    server = await startFullServer({
      backend: "linux-namespaces",
      settings: { "linux-namespaces": { directory: join(directory, "backend") } },
      server: { dataDir: join(directory, "data"), sandboxes: { onShutdown: "keep" } },
    });
    pointSdkAt(server.url);
  };

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-volumes-"));
    await start();
  });
  after(async () => {
    for (const { record } of server.sandboxes.list()) await server.sandboxes.kill(record.id);
    await server.stop();
    await rm(directory, { recursive: true, force: true });
  });

  it("are made, listed, looked at and destroyed by their ids, once", async () => {
    const made = await Volume.create("first");
    assert.match(made.volumeId, /^v[a-z0-9]{20}$/);
    assert.match(made.token, /^[\w-]{43}$/);
    assert.deepEqual(await Volume.list(), [{ volumeId: made.volumeId, name: "first" }]);
    const { name, token } = await Volume.getInfo(made.volumeId);
    assert.deepEqual([name, token], ["first", made.token]);
    assert.equal((await Volume.connect(made.volumeId)).token, made.token);
    await assert.rejects(Volume.create("first"), (error) => {
      assert.ok(error instanceof VolumeError);
      assert.equal(error.message, "400: Volume with name 'first' already exists");
      return true;
    });
    await assert.rejects(Volume.create("no/slash"), VolumeError);
    assert.equal(await Volume.destroy(made.volumeId), true);
    assert.equal(await Volume.destroy(made.volumeId), false);
    await assert.rejects(Volume.getInfo(made.volumeId), VolumeNotFoundError);
    assert.deepEqual(await Volume.list(), []);
  });

  it("are shared by sandboxes, outlive them and the server, and go with the last sandbox that has them", async () => {
    const volume = await Volume.create("shared");
    const one = await Sandbox.create({ volumeMounts: { "/data": volume } });
    const two = await Sandbox.create({ volumeMounts: { "/home/user/in/it": "shared" } });
    await one.commands.run("echo from one > /data/note");
    assert.equal(await two.files.read("in/it/note"), "from one\n");
    await two.files.write("/home/user/in/it/note", "from two");
    assert.equal((await one.commands.run("cat /data/note")).stdout, "from two");
    const mount = { name: "shared", path: "/home/user/in/it", readOnly: false };
    assert.deepEqual((await two.getInfo()).volumeMounts, [mount]);
    await two.kill();

    await server.stop();
    await start();
    const again = await Sandbox.connect(one.sandboxId);
    assert.equal((await again.commands.run("cat /data/note && echo more >> /data/note")).stdout, "from two");
    const [fork] = await again.fork();
    assert.ok(fork instanceof Sandbox);
    assert.equal(await fork.files.read("/data/note"), "from twomore\n");

    assert.equal(await Volume.destroy(volume.volumeId), true);
    await assert.rejects(Sandbox.create({ volumeMounts: { "/data": "shared" } }), SandboxError);
    await again.kill();
    assert.equal((await fork.commands.run("cat /data/note")).stdout, "from twomore\n");
    await fork.kill();
    const { volumes } = server.resolve(Backends).get("linux-namespaces");
    assert.deepEqual(await volumes?.list(), []);
  });

  it("can be read-only and have a size, which E2B's have not", async () => {
    const ask = (method: string, path: string, body?: unknown) =>
      exchange(server.url, {
        method,
        path,
        headers: { "x-api-key": API_KEY },
        ...(body !== undefined && { body: JSON.stringify(body) }),
      });
    const made = await ask("POST", "/volumes", { name: "sized", sizeMB: 64 });
    assert.equal(made.status, 201, made.text);
    const { volumeID, sizeMB } = made.json() as { readonly volumeID: string; readonly sizeMB: number };
    assert.equal(sizeMB, 64);
    const writer = await Sandbox.create({ volumeMounts: { "/data": "sized" } });
    await writer.commands.run("head -c 1000000 /dev/zero > /data/big");
    const { usedBytes } = (await ask("GET", `/volumes/${volumeID}`)).json() as Record<string, number>;
    assert.ok(usedBytes !== undefined && usedBytes >= 1_000_000, `it uses ${usedBytes}`);
    const created = await ask("POST", "/v2/sandboxes", {
      templateID: "base",
      volumeMounts: [{ name: "sized", path: "/data", readOnly: true }],
    });
    const { sandboxID } = created.json() as { readonly sandboxID: string };
    const reader = await Sandbox.connect(sandboxID);
    const { stdout } = await reader.commands.run("stat -c %s /data/big; touch /data/x || echo refused");
    assert.equal(stdout, "1000000\nrefused\n");
    await Promise.all([reader.kill(), writer.kill()]);
    assert.equal((await ask("DELETE", `/volumes/${volumeID}`)).status, 204);
  });

  it("are refused where they cannot be", async () => {
    const { volumeId } = await Volume.create("a");
    for (const path of ["relative", "/", "/proc/x", "/etc", "/a/../b", "/usr/new/one"]) {
      await assert.rejects(Sandbox.create({ volumeMounts: { [path]: "a" } }), (error) => {
        assert.ok(error instanceof SandboxError, path);
        assert.match(error.message, /^400: /, path);
        return true;
      });
    }
    await Volume.destroy(volumeId);
  });
});
