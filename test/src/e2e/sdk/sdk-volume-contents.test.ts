import assert from "node:assert/strict";
import { access } from "node:fs/promises";
import { after, before, describe, it } from "node:test";
import { eventually, type TestServer } from "@coppice/core/testing";
import { Sandbox, Volume, VolumeError, VolumePathNotFoundError } from "e2b";
import { exchange } from "../../harness/clients/exchange.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

const LOOPBACK = { host: "127.0.0.1", port: 0 };
const MEBIBYTE = 2 ** 20;

describe(
  "what is in a volume, through the e2b SDK",
  { skip: missingForNamespaces(), timeout: 240_000 },
  () => {
    let server: TestServer;
    let url: string;

    before(async () => {
      const names = ["api", "envd", "code", "ops", "volumes"];
      server = await startFullServer({
        backend: "linux-namespaces",
        server: { listeners: Object.fromEntries(names.map((name) => [name, LOOPBACK])) },
        settings: { "sandbox-api": { maxVolumeEntries: 20 } },
      });
      pointSdkAt(server.url);
      url = server.urls["volumes"] ?? "";
      process.env["E2B_VOLUME_API_URL"] = url;
    });
    after(async () => {
      delete process.env["E2B_VOLUME_API_URL"];
      await server.stop();
    });

    it("is read, written, listed, changed and removed without a sandbox", async () => {
      const volume = await Volume.create("files");
      const written = await volume.writeFile("/a/text", "héé\n", { mode: 0o600 });
      assert.deepEqual(
        [written.name, written.path, written.type, written.size, written.mode, written.uid],
        ["text", "/a/text", "file", 6, 0o600, 1000],
      );
      assert.equal(await volume.readFile("/a/text"), "héé\n");
      await volume.writeFile("/a/empty", "");
      assert.equal(await volume.readFile("/a/empty"), "");
      assert.equal((await volume.readFile("/a/empty", { format: "bytes" })).byteLength, 0);
      const big = Buffer.alloc(3 * MEBIBYTE, "volume");
      await volume.writeFile("/big", new Blob([big]).stream());
      assert.deepEqual(Buffer.from(await volume.readFile("/big", { format: "bytes" })), big);
      await assert.rejects(volume.writeFile("/big", "x", { force: false }), /409/);

      await assert.rejects(volume.makeDir("/no/such"), VolumePathNotFoundError);
      const made = await volume.makeDir("/d/e", { force: true, mode: 0o750 });
      assert.deepEqual([made.type, made.mode], ["directory", 0o750]);
      await assert.rejects(volume.makeDir("/d/e"), VolumeError);
      const listed = async (depth?: number) =>
        (await volume.list("/", depth === undefined ? {} : { depth })).map(({ path }) => path);
      assert.deepEqual(await listed(), ["/a", "/big", "/d"]);
      assert.deepEqual(await listed(2), ["/a", "/a/empty", "/a/text", "/big", "/d", "/d/e"]);
      const changed = await volume.updateMetadata("/a/text", { uid: 0, mode: 0o640 });
      assert.deepEqual([changed.uid, changed.gid, changed.mode], [0, 1000, 0o640]);
      assert.ok(Math.abs(changed.mtime.getTime() - Date.now()) < 60_000);
      await volume.remove("/a");
      assert.equal(await volume.exists("/a/text"), false);
      await assert.rejects(volume.remove("/a"), VolumePathNotFoundError);
      await assert.rejects(volume.readFile("/nothing"), VolumePathNotFoundError);
      await assert.rejects(volume.remove("/"), VolumeError);
      assert.equal(server.sandboxes.list().length, 0);
      await Volume.destroy(volume.volumeId);
      await assert.rejects(volume.list("/"), /401|Unauthorized/);
    });

    it("is what its sandboxes see, and links that they leave lead to nothing of the host's", async () => {
      const volume = await Volume.create("shared");
      const sandbox = await Sandbox.create({ volumeMounts: { "/data": volume } });
      await volume.writeFile("/from-outside", "outside");
      assert.equal(await sandbox.files.read("/data/from-outside"), "outside");
      const links = ["ln -s /etc/shadow shadow", "ln -s ../../../../../../.. up", "ln -s /proc/1/root root"];
      await sandbox.commands.run(
        `cd /data && echo inside > file && ln -s file link && ${links.join(" && ")}`,
      );
      assert.equal(await volume.readFile("/link"), "inside\n");
      const link = await volume.getInfo("/link");
      assert.deepEqual([link.type, link.target], ["symlink", "/file"]);
      // These directories exist on the host.
      for (const path of ["/up/tmp", "/root/tmp", "/up/proc/1/root/tmp"]) {
        const names = await volume.list(path).catch(() => []);
        assert.deepEqual(names, [], path);
      }
      // Written to the target of the link, which no sandbox has mounted.
      await volume.writeFile("/up/tmp/stray", "x").catch(() => undefined);
      assert.equal(await sandbox.files.exists("/tmp/stray"), false);
      // Replaced by a link to the outside again and again while it is read.
      const swap =
        "cd /data; while :; do ln -sfn /etc swapped; rm -f swapped; mkdir swapped; rmdir swapped; done";
      const swapping = await sandbox.commands.run(swap, { background: true, timeoutMs: 0 });
      for (let round = 0; round < 50; round += 1) {
        await volume.writeFile("/swapped/coppice-was-here", "x").catch(() => undefined);
      }
      await swapping.kill();
      await assert.rejects(access("/etc/coppice-was-here"), "a file of the host was made");
      await sandbox.kill();
      await Volume.destroy(volume.volumeId);
    });

    it("is kept from everybody without its token, and a volume that never was is answered alike", async () => {
      const [volume, other] = [await Volume.create("one"), await Volume.create("two")];
      await volume.writeFile("/secret", "x");
      const madeUp = `v${"0".repeat(volume.volumeId.length - 1)}`;
      const routes = server.routes.filter(({ surface }) => surface === "volumes");
      assert.equal(routes.length, 7);
      for (const { method, path } of routes) {
        for (const authorization of ["", "Bearer wrong", `Bearer ${other.token}`, `Basic ${volume.token}`]) {
          const ask = async (id: string) => {
            const headers = authorization === "" ? {} : { authorization };
            const full = `${path.replace(":id", id)}?path=/secret`;
            const { status, text } = await exchange(url, { method, path: full, headers });
            return [status, text];
          };
          const [theirs, none] = [await ask(volume.volumeId), await ask(madeUp)];
          assert.deepEqual(theirs, none, `${method} ${path} with '${authorization}'`);
          assert.equal(theirs[0], 401);
        }
      }
      for (const query of ["", "?path=", "?path=a%00b", "?path=/&depth=x", "?path=/&depth=1e3"]) {
        const { status, text } = await exchange(url, {
          path: `/volumecontent/${volume.volumeId}/dir${query}`,
          headers: { authorization: `Bearer ${volume.token}` },
        });
        assert.equal(status, 400, query);
        assert.equal((JSON.parse(text) as { readonly code: string }).code, "invalid_argument");
      }
      for (let each = 0; each < 21; each += 1) await volume.writeFile(`/many/${each}`, "x");
      await assert.rejects(volume.list("/many"), /more than 20 entries/);
      assert.equal(await Volume.destroy(volume.volumeId), true);
      assert.equal(await Volume.destroy(other.volumeId), true);
      await eventually("no sandbox of theirs is left", () => server.sandboxes.list().length === 0);
    });
  },
);
