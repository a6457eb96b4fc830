import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { gzipSync } from "node:zlib";
import type { PackSource, Sandbox } from "@coppice/core/backend";
import type { LayerBlob } from "@coppice/core/testing";
import { CaseSkipped, type ConformanceCase } from "../kit/conformance-case.js";
import type { ConformanceContext } from "../kit/conformance-context.js";

const GZIPPED = "application/vnd.oci.image.layer.v1.tar+gzip";

/** Promises of a backend whose images can be packed. */
export const packCases: readonly ConformanceCase[] = [
  {
    name: "an image is packed with all that its sandboxes see and nothing else, each time to the same bytes",
    group: "facets",
    needs: ["images"],
    async run(context) {
      const pack = packerOf(context);
      const lower = await context.image([
        [
          { name: "etc/gone", body: "lower" },
          { name: "srv/old/a", body: "lower" },
          { name: "srv/own", body: "x", uid: 1234, gid: 1234, mode: 0o640 },
        ],
      ]);
      const script =
        "rm -r /etc/gone /srv/old && mkdir /srv/old && echo new > /srv/old/c && ln -s ../own /srv/old/link && " +
        "ln /srv/old/c /srv/hard && chmod 4711 /bin/sleep && echo ü > '/srv/ü x'";
      const sandbox = await context.provision({ image: { id: lower, user: "root" } });
      await context.succeed(script, { in: sandbox });
      const image = context.newImage();
      if (sandbox.committing === undefined) throw new CaseSkipped("its sandboxes cannot be committed");
      await sandbox.committing.commit(image);
      await sandbox.destroy();
      const archive = await pack({ image });
      assert.ok(archive.equals(await pack({ image })), "two archives of an image differ");
      await context.backend.images?.remove(lower);
      assert.ok(archive.equals(await pack({ image })), "it has changed without its lower image");
      const again = await unpacked(context, archive);
      const seen = await context.succeed(
        "cd /srv; echo * old/*; cat old/link /srv/ü*; ls /etc/gone; [ hard -ef old/c ] && echo one",
        { in: again },
      );
      assert.equal(seen, "hard old own ü x old/c old/link\nxü\none\n");
      const found = await Promise.all(["/srv/own", "/bin/sleep"].map((path) => again.files.stat(path)));
      assert.deepEqual(
        found.map(({ rawMode, uid }) => [(rawMode & 0o7777).toString(8), uid]),
        [
          ["640", 1234],
          ["4711", 0],
        ],
      );
    },
  },
  {
    name: "a snapshot is packed with the image that it stands on, and with no other one",
    group: "facets",
    needs: ["images", "snapshots"],
    async run(context) {
      const pack = packerOf(context);
      const image = await context.image([[{ name: "etc/kept", body: "lower" }]]);
      const other = await context.image([]);
      const sandbox = await context.provision({ image: { id: image, user: "root" } });
      await context.succeed("echo own > /srv-file", { in: sandbox });
      const snapshot = `conform${randomBytes(8).toString("hex")}`;
      await sandbox.snapshots?.take(snapshot);
      try {
        const again = await unpacked(context, await pack({ image, snapshot }));
        assert.equal(await context.succeed("cat /srv-file /etc/kept", { in: again }), "own\nlower");
        await context.refuses(() => pack({ image: other, snapshot }), ["invalid_argument", "not_found"]);
        await context.refuses(() => pack({ image, snapshot: `${snapshot}x` }), "not_found");
        await context.refuses(() => pack({ image: context.newImage() }), "not_found");
      } finally {
        await context.backend.snapshots?.remove(snapshot);
      }
    },
  },
  {
    name: "packing that is given up leaves nothing, and an image can be removed meanwhile",
    group: "facets",
    needs: ["images"],
    async run(context) {
      const pack = packerOf(context);
      const { images } = context.backend;
      const body = randomBytes(4 * 2 ** 20);
      const image = await context.image([[{ name: "etc/big", body }]]);
      const stopping = new AbortController();
      for await (const chunk of images?.pack?.({ image }, stopping.signal) ?? []) {
        assert.ok(chunk.byteLength > 0);
        break;
      }
      const ended = (async () => {
        for await (const _ of images?.pack?.({ image }, stopping.signal) ?? []) stopping.abort();
      })();
      await assert.rejects(ended, (error: unknown) => error === stopping.signal.reason);
      const reading = pack({ image });
      const removed = images?.remove(image);
      const [read] = await Promise.allSettled([reading, removed]);
      if (read.status === "fulfilled") assert.ok(read.value.includes(body), "a file is not whole");
      assert.equal((await images?.list())?.includes(image), false);
    },
  },
];

/** Skips the case where the backend cannot pack. */
function packerOf({ backend }: ConformanceContext): (source: PackSource) => Promise<Buffer> {
  const { images } = backend;
  const { pack } = images ?? {};
  if (images === undefined || pack === undefined) throw new CaseSkipped("its images cannot be packed");
  return async (source) =>
    Buffer.concat(await Array.fromAsync(pack.call(images, source, new AbortController().signal)));
}

/** A sandbox of an image that has an archive as its topmost layer. */
async function unpacked(context: ConformanceContext, archive: Buffer): Promise<Sandbox> {
  const layer: LayerBlob = { archive, blob: gzipSync(archive, { level: 1 }), mediaType: GZIPPED };
  const id = await context.image([layer]);
  return context.provision({ image: { id, user: "root" } });
}
