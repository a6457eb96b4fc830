import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it, type TestContext } from "node:test";
import type { TemplateRecord } from "../model/template-record.js";
import { TemplatesStore } from "./templates-store.js";

const TEMPLATE: TemplateRecord = {
  id: "t".repeat(20),
  owner: "acme",
  namespace: "acme",
  alias: "web",
  isPublic: false,
  createdAtMs: 0,
  updatedAtMs: 0,
  spawnCount: 0,
};
const LIMITS = { cpuCount: 2, memoryMiB: 512, diskMiB: undefined };

interface Opened {
  readonly store: TemplatesStore;
  readonly reopen: () => TemplatesStore;
}

async function openStore(context: TestContext): Promise<Opened> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-templates-"));
  let store = new TemplatesStore(directory);
  context.after(async () => {
    store.close();
    await rm(directory, { recursive: true });
  });
  const reopen = (): TemplatesStore => {
    store.close();
    store = new TemplatesStore(directory);
    return store;
  };
  store.templates.insert(TEMPLATE);
  return { store, reopen };
}

function resultOf(image: string) {
  const context = { environment: { A: "1" }, user: "user", workdir: undefined };
  return { image, context, start: undefined, bytes: 5 };
}

function addBuild({ builds, tags }: TemplatesStore, id: string, ...names: readonly string[]): void {
  builds.add({ id, templateId: TEMPLATE.id, backend: "memory", limits: LIMITS }, 1);
  for (const name of names) tags.assign(TEMPLATE.id, name, id, 1);
}

function makeReady({ builds, images }: TemplatesStore, id: string): void {
  builds.start(id, 2);
  builds.finish(id, resultOf(`image-${id}`), 3);
  images.add({ id: `image-${id}`, backend: "memory", tenant: "acme" });
}

/** As JSON has it: without what is undefined. */
function plain(value: unknown): unknown {
  return JSON.parse(JSON.stringify(value));
}

it("a restart keeps waiting builds and fails running ones; an end is final", async (context) => {
  const { store, reopen } = await openStore(context);
  for (const id of ["waits", "runs", "done", "broken"]) addBuild(store, id, id);
  store.builds.start("runs", 2);
  makeReady(store, "done");
  assert.ok(store.builds.fail("broken", { message: "no", step: "1" }, 3));
  const again = reopen();
  again.builds.failInterrupted(9);
  const stateOf = (id: string) => again.builds.get({ id })?.state;
  assert.deepEqual(["waits", "runs", "done", "broken"].map(stateOf), ["waiting", "error", "ready", "error"]);
  assert.equal(
    again.builds.get({ id: "runs" })?.reason?.message,
    "The server restarted during this build; build again",
  );
  assert.deepEqual(plain(again.builds.get({ id: "done" })?.result), plain(resultOf("image-done")));
  for (const id of ["runs", "done", "broken"]) {
    assert.equal(again.builds.start(id, 10), false);
    assert.equal(again.builds.fail(id, { message: "late", step: undefined }, 10), false);
    assert.equal(again.builds.finish(id, resultOf("late"), 10), false);
  }
  assert.deepEqual(again.builds.get({ id: "broken" })?.reason, { message: "no", step: "1" });
});

it("of the ready builds of a tag the last assigned one has it", async (context) => {
  const { store } = await openStore(context);
  addBuild(store, "one", "default", "v1");
  addBuild(store, "two", "default");
  assert.equal(store.builds.tagged(TEMPLATE.id, "default"), undefined);
  makeReady(store, "two");
  makeReady(store, "one");
  assert.equal(store.builds.tagged(TEMPLATE.id, "default")?.id, "two");
  store.tags.assign(TEMPLATE.id, "default", "one", 4);
  assert.equal(store.builds.tagged(TEMPLATE.id, "default")?.id, "one");
  assert.deepEqual(
    store.tags.list(TEMPLATE.id).map(({ name, buildId }) => [name, buildId]),
    [
      ["default", "one"],
      ["v1", "one"],
    ],
  );
  assert.equal(store.tags.countWith(TEMPLATE.id, ["v1", "v2"]), 3);
  store.tags.remove({ templateId: TEMPLATE.id, name: ["default"] });
  assert.equal(store.builds.tagged(TEMPLATE.id, "default"), undefined);
});

it("builds that share a tag are rivals until they end", async (context) => {
  const { store } = await openStore(context);
  addBuild(store, "old", "a", "b");
  addBuild(store, "other", "c");
  addBuild(store, "new", "b", "d");
  const rivals = () => store.builds.rivals("new").map(({ id }) => id);
  assert.deepEqual(rivals(), ["old"]);
  makeReady(store, "old");
  assert.deepEqual(rivals(), []);
});

it("old builds are forgotten, with their tags and logs, but for those that a tag leads to", async (context) => {
  const { store } = await openStore(context);
  for (const id of ["a", "b", "c", "d"]) {
    addBuild(store, id, id === "a" ? "stable" : "default");
    makeReady(store, id);
  }
  addBuild(store, "waits", "next");
  store.logs.add("b", 0, [{ atMs: 1, level: "info", message: "hello", step: undefined }]);
  store.builds.forget(TEMPLATE.id, 1);
  const left = store.builds.list(TEMPLATE.id, { limit: 10, before: 1000 }).map(({ id }) => id);
  assert.deepEqual(left, ["waits", "d", "a"]);
  assert.deepEqual(
    store.images.unneeded().map(({ id }) => id),
    ["image-b", "image-c"],
  );
  assert.deepEqual(store.logs.list("b", { level: "debug", limit: 9, offset: 0 }), []);
});

it("an image is needed while a layer or a build has it", async (context) => {
  const { store } = await openStore(context);
  addBuild(store, "one", "default");
  makeReady(store, "one");
  store.images.add({ id: "extra", backend: "memory", tenant: "acme" });
  const key = { key: "k1", tenant: "acme", backend: "memory" };
  const layer = { ...key, ...resultOf("extra") };
  store.layers.add(layer, 5);
  assert.deepEqual(plain(store.layers.use(key, 6)), plain(layer));
  assert.equal(store.layers.use({ ...key, tenant: "other" }, 6), undefined);
  assert.deepEqual(store.images.unneeded(), []);
  store.layers.remove({ usedAtMs: { "<": 6 } });
  assert.deepEqual(store.images.unneeded(), []);
  store.layers.forget("acme", 0);
  assert.deepEqual(
    store.images.unneeded().map(({ id }) => id),
    ["extra"],
  );
  store.templates.remove({ id: TEMPLATE.id });
  assert.equal(store.images.unneeded().length, 2);
  assert.equal(store.images.sum("bytes", { tenant: "acme" }), 0);
  store.images.update({ id: "extra" }, { bytes: 7 });
  assert.equal(store.images.sum("bytes", { tenant: "acme" }), 7);
});

it("a log is read by number and level, and from a time on", async (context) => {
  const { store } = await openStore(context);
  addBuild(store, "one", "default");
  const levels = ["debug", "info", "warn", "error"] as const;
  const entries = levels.map((level, index) => ({
    atMs: index,
    level,
    message: `m${index}`,
    step: String(index % 2),
  }));
  store.logs.add("one", 0, entries);
  const told = (found: readonly { readonly message: string }[]) =>
    found.map(({ message }) => message).join(" ");
  assert.equal(told(store.logs.list("one", { level: "info", limit: 2, offset: 1 })), "m2 m3");
  assert.equal(told(store.logs.since("one", 2, { level: "debug", limit: 9 })), "m2 m3");
  assert.equal(told(store.logs.before("one", 2, { level: "debug", limit: 2 })), "m2 m1");
  assert.equal(told(store.logs.ofStep("one", "1", 5)), "m1 m3");
});

it("a secret is made once", async (context) => {
  const { store, reopen } = await openStore(context);
  const secret = Buffer.from(store.secret("uploads")).toString("hex");
  assert.equal(secret.length, 64);
  assert.notEqual(Buffer.from(store.secret("other")).toString("hex"), secret);
  assert.equal(Buffer.from(reopen().secret("uploads")).toString("hex"), secret);
});
