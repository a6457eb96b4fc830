import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import type { ImageId, Sandbox, SandboxImage } from "@coppice/core/backend";
import {
  type ImageLayoutOptions,
  smallRoot,
  type TarEntry,
  WITHOUT_SMALL_ROOT,
  writeImageLayout,
} from "@coppice/core/testing";
import type { JailBackend } from "@coppice/plugin-jail-freebsd";
import {
  type FreebsdHost,
  openFreebsdHost,
  reasonWithoutFreebsdHost,
} from "../../harness/freebsd/freebsd-host.js";

const signal = new AbortController().signal;
const file = (name: string, body = ""): TarEntry => ({ name, body });

describe("images of jails", { skip: reasonWithoutFreebsdHost() ?? WITHOUT_SMALL_ROOT }, () => {
  let host: FreebsdHost;
  let backend: JailBackend;
  let count = 0;

  before(async () => {
    host = await openFreebsdHost();
    backend = host.backend();
  });
  after(async () => {
    await backend.close();
    await host[Symbol.asyncDispose]();
  });

  async function unpack(options: ImageLayoutOptions, by = backend): Promise<ImageId> {
    const layout = join(host.directory, "layout");
    const id = `image${count++}`;
    await writeImageLayout(layout, options);
    try {
      const source = { layout, reference: "image", maxBytes: 2 ** 26, maxEntries: 1_000 };
      await by.images?.unpack(id, source, signal);
      return id;
    } finally {
      await rm(layout, { recursive: true });
    }
  }

  const provision = (image: SandboxImage): Promise<Sandbox> =>
    backend.provision(
      { id: `of${count++}`, template: "built", image, limits: {}, allowInternetAccess: false },
      signal,
    );

  async function outputOf(sandbox: Sandbox, script: string): Promise<string> {
    const started = await sandbox.spawn({ path: "/bin/sh", args: ["-c", script], env: { PATH: "/bin" } });
    let text = "";
    for await (const { data } of started.output) text += Buffer.from(data).toString();
    return text;
  }

  const datasets = async (): Promise<string> =>
    host.run(
      host.settings.programs.zfs,
      "list",
      "-H",
      "-o",
      "name",
      "-t",
      "all",
      "-r",
      host.settings.dataset,
    );

  it("keep owners and setuid programs, and give way to what sandboxes are mounted on", async () => {
    const id = await unpack({
      layers: [
        smallRoot(),
        [
          { name: "dev", type: "2", link: "/etc" },
          file("proc", "a file"),
          { name: ".coppice", type: "2", link: "../../.." },
          { name: "srv/own", body: "x", uid: 1234, gid: 1235, mode: 0o4755 },
          file("old/a"),
        ],
        [file("old/.wh..wh..opq"), file("old/b"), file(".wh.nothing")],
      ],
    });
    const sandbox = await provision({ id, user: "root" });
    assert.equal(
      await outputOf(sandbox, "cd /; ls old; stat -c '%a %u %g' srv/own; [ -c dev/null ] && ls -d proc/self"),
      "b\n4755 1234 1235\nproc/self\n",
    );
    await sandbox.destroy();
    await backend.images?.remove(id);
    assert.doesNotMatch(await datasets(), /image-/);
  });

  it("have the name servers of the settings, whatever an image has in the place of their file", async () => {
    const network = { ...host.settings.network, kind: "vnet" as const, resolvers: ["192.0.2.53"] };
    const connected = host.backend({ directory: join(host.directory, "e"), network });
    const id = await unpack({ layers: [smallRoot(), [file("etc/resolv.conf/file")]] }, connected);
    let packed = "";
    for await (const piece of connected.images?.pack?.({ image: id }, signal) ?? [])
      packed += Buffer.from(piece).toString("latin1");
    assert.match(packed, /\nnameserver 192\.0\.2\.53\n|\0nameserver 192\.0\.2\.53\n/);
    await connected.images?.remove(id);
    await connected.close();
  });

  it("are refused when a blob is not what the manifest says, and leave nothing", async () => {
    const layers = [smallRoot(), [file("x")]];
    const other = `sha256:${"0".repeat(64)}`;
    const change: ImageLayoutOptions["change"] = (manifest) => ({
      ...manifest,
      layers: manifest.layers.map((layer) => ({ ...layer, digest: other })),
    });
    await assert.rejects(unpack({ layers, change }), { code: "invalid_argument" });
    assert.deepEqual(await backend.images?.list(), []);
    assert.deepEqual(await host.leaks(), []);
  });

  it("need umoci", async () => {
    const without = host.backend({ programs: { ...host.settings.programs, umoci: "/missing/umoci" } });
    await backend.close();
    await assert.rejects(unpack({ layers: [smallRoot()] }, without), {
      code: "failed_precondition",
      message: /does not have the program \/missing\/umoci \(pkg install umoci\)/,
    });
    await without.close();
    backend = host.backend();
  });

  it("are known to the next server, with what their sandboxes begin with", async () => {
    const id = await unpack({ layers: [smallRoot(), [{ name: "srv/work dir/", type: "5" }]] });
    const image = { id, user: "nobody", workdir: "/srv/work dir" };
    const [running, stopped] = [await provision(image), await provision(image)];
    await stopped.stopping?.stop();
    await backend.close();
    backend = host.backend();
    const found = await backend.recover();
    assert.equal(found.length, 2);
    const adopted = found.find((each) => each.id === running.id);
    assert.ok(adopted);
    assert.equal(await outputOf(adopted, "pwd; id -un"), "/srv/work dir\nnobody\n");
    assert.equal((await adopted.user("root")).workdir, "/srv/work dir");
    await adopted.committing?.commit("upper");
    for (const each of found) await each.destroy();
    // The lower one is needed by the upper one, and its clone in turn by a sandbox.
    await backend.images?.remove(id);
    const above = await provision({ id: "upper", user: "root" });
    await backend.images?.remove("upper");
    assert.deepEqual(await backend.images?.list(), []);
    assert.match(await datasets(), new RegExp(`/image-${id}@image\n[^]*/image-upper@image\n`));
    await above.destroy();
    assert.doesNotMatch(await datasets(), /image-/);
    assert.deepEqual(await host.leaks(), []);
  });

  it("leave nothing of one that was packed while the server was killed", async () => {
    const id = await unpack({ layers: [smallRoot(), [{ name: "srv/big", body: randomBytes(2 ** 22) }]] });
    const sandbox = await provision({ id, user: "root" });
    const packing = backend.images?.pack?.({ image: id }, signal)[Symbol.asyncIterator]();
    assert.equal((await packing?.next())?.done, false);
    assert.deepEqual(await backend.images?.list(), [id]);
    // As if killed: with a sandbox that lives, the agent of the host goes on, and tar, too.
    await backend.close();
    backend = host.backend();
    const [found] = await backend.recover();
    assert.equal(found?.id, sandbox.id);
    const [left = "", ...others] = ((await backend.images?.list()) ?? []).filter((each) => each !== id);
    assert.match(left, /^pack/);
    assert.deepEqual(others, []);
    assert.doesNotMatch(await host.run("/usr/bin/ps", "-e", "-o", "args="), /bsdtar/);
    for (const image of [left, id]) await backend.images?.remove(image);
    await found?.destroy();
    assert.deepEqual(await host.leaks(), []);
  });
});
