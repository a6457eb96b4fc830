import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import type { ImageId, Sandbox } from "@coppice/core/backend";
import { smallRoot, WITHOUT_SMALL_ROOT, writeImageLayout } from "@coppice/core/testing";
import { reasonWithoutFreebsdHost } from "../../harness/freebsd/freebsd-host.js";
import { type FaultScene, type FaultyAct, FaultyHost, newId } from "../../harness/freebsd/jail-faults.js";

describe(
  "images of jails, on a host that fails",
  { skip: reasonWithoutFreebsdHost() ?? WITHOUT_SMALL_ROOT },
  () => {
    let host: FaultyHost;
    let layout: string;

    before(async () => {
      host = await FaultyHost.open();
      layout = join(host.host.directory, "layout");
      await writeImageLayout(layout, { layers: [smallRoot()] });
    });
    after(() => host[Symbol.asyncDispose]());

    async function unpack({ backend }: FaultScene): Promise<ImageId> {
      const id = newId();
      const source = { layout, reference: "image", maxBytes: 2 ** 28, maxEntries: 1_000 };
      await backend.images?.unpack(id, source, new AbortController().signal);
      return id;
    }

    it("nothing is left of one that is unpacked and removed", async () => {
      const act = async (scene: FaultScene): Promise<void> =>
        scene.backend.images?.remove(await unpack(scene));
      assert.ok((await host.failAtEach("dead", { act })) >= 20);
      await host.checkDecoys();
    });

    it("nothing is left of the clone that is packed, also where the image goes first", async () => {
      const packed: FaultyAct<ImageId> = {
        prepare: unpack,
        act: async ({ backend }, image) => {
          let removed: Promise<void> | undefined;
          for await (const _ of backend.images?.pack?.({ image }, new AbortController().signal) ?? [])
            await (removed ??= backend.images?.remove(image));
        },
      };
      assert.ok((await host.failAtEach("dead", packed)) >= 15);
      await host.checkDecoys();
    });

    it("nothing is left of one that a sandbox becomes, and of the one below it, which goes first", async () => {
      const becomes: FaultyAct<{ readonly lower: ImageId; readonly sandbox: Sandbox }> = {
        prepare: async (scene) => {
          const lower = await unpack(scene);
          const image = { id: lower, user: "root" };
          return { lower, sandbox: await scene.make({ allowInternetAccess: false, image }) };
        },
        act: async ({ backend }, { lower, sandbox }) => {
          const upper = newId();
          await sandbox.committing?.commit(upper);
          await backend.images?.remove(lower);
          await sandbox.destroy();
          await backend.images?.remove(upper);
        },
      };
      for (const fault of ["late", "dead"] as const) assert.ok((await host.failAtEach(fault, becomes)) >= 15);
      await host.checkDecoys();
    });
  },
);
