import assert from "node:assert/strict";
import { mkdir, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, it } from "node:test";
import type { Launcher } from "../launcher/launcher.js";
import type { ProjectQuotas } from "../limits/given-numbers.js";
import type { Chain } from "./layer-store.js";
import { ImageStore } from "./image-store.js";

describe("an image that was committed", () => {
  let directory: string;
  let inUse: readonly Chain[];
  let reclaimed: number[];
  let released: number[];

  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-images-"));
    inUse = [];
    reclaimed = [];
    released = [];
  });
  afterEach(async () => {
    await rm(directory, { recursive: true });
  });

  async function openStore(): Promise<ImageStore> {
    const remove = async (...paths: readonly string[]) => {
      for (const path of paths) await rm(path, { recursive: true, force: true });
    };
    const quotas = {
      usage: async (project: number) => project * 1_000,
      reclaim: (project: number) => void reclaimed.push(project),
      release: async (project: number) => void released.push(project),
    };
    const store = new ImageStore({
      directory: join(directory, "images"),
      packing: join(directory, "packing"),
      launcher: {
        remove,
        run: async () => ({ code: 0, output: "" }),
        disk: async () => "77 3",
      } as unknown as Launcher,
      chainsInUse: async () => inUse,
      users: undefined,
      ids: undefined,
      quotas: quotas as unknown as ProjectQuotas,
    });
    await store.open();
    return store;
  }

  async function layer(name: string): Promise<string> {
    const path = join(directory, name);
    for (const each of ["upper", "work"]) await mkdir(join(path, each), { recursive: true });
    await writeFile(join(path, "upper", "file"), name);
    return path;
  }

  it("keeps the project of its files, which the next server knows, until the files are gone", async () => {
    const store = await openStore();
    await store.commit("one", { layer: await layer("first"), chain: [], project: 7 });
    await store.commit("two", { layer: await layer("second"), chain: ["one"], project: undefined });
    assert.deepEqual(await Promise.all([store.usage("one"), store.usage("two")]), [7_000, 77]);
    assert.deepEqual((await readdir(join(directory, "images", "one"))).toSorted(), ["image.json", "upper"]);
    const next = await openStore();
    assert.deepEqual(reclaimed, [7]);
    await next.remove("one");
    assert.deepEqual([released, await next.list()], [[], ["two"]]);
    inUse = [["two", "one"]];
    await next.remove("two");
    assert.deepEqual([released, await next.list()], [[], []]);
    // A server that comes between finds it marked.
    const last = await openStore();
    await assert.rejects(last.chainOf("one"), { code: "not_found" });
    inUse = [];
    await last.collect();
    assert.deepEqual([released, await readdir(join(directory, "images"))], [[7], []]);
  });

  it("stays while it is held, with those below it", async () => {
    const store = await openStore();
    await store.commit("one", { layer: await layer("first"), chain: [], project: undefined });
    await store.commit("two", { layer: await layer("second"), chain: ["one"], project: undefined });
    {
      using _held = store.hold("two");
      using _again = store.hold("two");
      for (const id of ["one", "two"]) await store.remove(id);
      assert.deepEqual((await readdir(join(directory, "images"))).toSorted(), ["one", "two"]);
    }
    await store.collect();
    assert.deepEqual(await readdir(join(directory, "images")), []);
  });

  it("leaves the layer where it is when it cannot be made", async () => {
    const store = await openStore();
    const deep = Array.from({ length: 96 }, (_, index) => `image${index}`);
    const path = await layer("first");
    const commit = store.commit("one", { layer: path, chain: deep, project: undefined });
    await assert.rejects(commit, { reason: "image_too_deep", code: "failed_precondition" });
    assert.deepEqual((await readdir(path)).toSorted(), ["upper", "work"]);
  });
});
