import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import type { SandboxBackend } from "@coppice/core/backend";
import { eventually } from "@coppice/core/testing";
import { BuildFailure } from "../model/build-record.js";
import { type Requested, START, type Status, templatesServer } from "../testing/templates-server.js";

const UNTIL = { layout: "/nowhere", reference: "image", maxBytes: 1, maxEntries: 1 };

it("images of failed, cancelled, old and deleted builds are removed, and those in use stay", async () => {
  await using server = await templatesServer({ settings: { maxBuilds: 1, maxLayers: 1 } });
  const { images }: SandboxBackend = server.backend.backend;
  const listed = async () => (await images?.list())?.length;
  const first = await server.build("one");
  await server.ended(first);
  await eventually("one image", async () => (await listed()) === 1);
  server.builder.script = async (request, surroundings) => {
    const { image } = await server.builder.make(request, surroundings);
    // Not in a layer, nor in a result.
    await images?.unpack(surroundings.layers.nameImage(), UNTIL, surroundings.signal);
    throw new BuildFailure(image, "1");
  };
  await server.ended(await server.build("two", { start: { fromImage: "other" } }));
  // A failed build leaves its layer, in place of the first one's; that build still has its image.
  await eventually("two images", async () => (await listed()) === 2);
  server.builder.script = (request, surroundings) => server.builder.make(request, surroundings);
  await server.ended(await server.build("one", { start: { fromImage: "third" } }));
  await server.ended(await server.build("one", { start: { fromImage: "fourth" } }));
  // Only the newest build and the newest layer are kept, and they have the same image.
  await eventually("one image", async () => (await listed()) === 1);
  await server.ask("DELETE /templates/one");
  await eventually("one image", async () => (await listed()) === 1);
});

it("a build that goes on past its tenant's space fails, and its steps do not keep later builds out", async () => {
  await using server = await templatesServer({ settings: { maxStorage: "10B" } });
  const made: string[] = [];
  server.builder.script = async (request, surroundings) => {
    // Of four bytes each.
    for (const reference of ["1", "2", "3", "4", "5"]) {
      const base = { kind: "image", reference, credentials: undefined } as const;
      made.push((await server.builder.make({ ...request, base }, surroundings)).image);
    }
    throw new Error("it went on");
  };
  const { status, reason } = await server.ended(await server.build("much"));
  assert.equal(status, "error");
  assert.equal(reason?.message, "the templates of a tenant may have 10 bytes; delete some of them");
  assert.equal(made.length, 3);
  server.builder.script = (request, surroundings) => server.builder.make(request, surroundings);
  let next = await server.ask("POST /v3/templates", { name: "little" });
  for (let attempts = 0; attempts < 500 && next.status !== 202; attempts += 1) {
    await sleep(5);
    next = await server.ask("POST /v3/templates", { name: "little" });
  }
  assert.equal((await server.ended(await server.build("little"))).status, "ready");
});

it("a restart fails what was building, keeps what waits, and brings images and store together", async (context) => {
  const dataDir = await mkdtemp(join(tmpdir(), "coppice-restart-"));
  context.after(() => rm(dataDir, { recursive: true }));
  const server = await templatesServer({ dataDir });
  const { backend } = server;
  const { images }: SandboxBackend = backend.backend;
  const ready = await server.build("ready");
  await server.ended(ready);
  const lost = await server.build("lost", { start: { fromImage: "lost" } });
  await server.ended(lost);
  const { json: waiting } = await server.ask<Requested>("POST /v3/templates", { name: "waiting" });
  const started = Promise.withResolvers<void>();
  server.builder.script = async (_, { layers, signal }) => {
    await images?.unpack(layers.nameImage(), UNTIL, signal);
    started.resolve();
    return new Promise((_resolve, reject) =>
      signal.addEventListener("abort", () => reject(signal.reason as Error)),
    );
  };
  const building = await server.build("building");
  await started.promise;
  const imageOf = async ({ aliases }: Requested): Promise<string> => {
    const made = await server.sandboxes.create({
      template: String(aliases[0]),
      timeoutMs: 9e4,
      secure: false,
    });
    await server.sandboxes.kill(made.record.id);
    return made.record.build?.image.id ?? "";
  };
  const kept = await imageOf(ready);
  const gone = await imageOf(lost);
  await server.stop();
  await images?.remove(gone);
  await images?.unpack("mstray", UNTIL, new AbortController().signal);

  const next = await templatesServer({ dataDir, backend });
  const statusOf = async ({ templateID, buildID }: Requested) => {
    const { json } = await next.ask<Status>(`GET /templates/${templateID}/builds/${buildID}/status`);
    return [json.status, json.reason?.message];
  };
  assert.deepEqual(await statusOf(ready), ["ready", undefined]);
  assert.deepEqual(await statusOf(waiting), ["waiting", undefined]);
  assert.deepEqual(await statusOf(building), [
    "error",
    "The server restarted during this build; build again",
  ]);
  assert.deepEqual(await statusOf(lost), ["error", "The image of this build is lost; build again"]);
  for (let attempts = 0; attempts < 500 && (await images?.list())?.length !== 1; attempts += 1)
    await sleep(5);
  assert.deepEqual(await images?.list(), [kept]);
  const path = `/v2/templates/${waiting.templateID}/builds/${waiting.buildID}`;
  assert.equal((await next.ask(`POST ${path}`, START)).status, 202);
  assert.equal((await next.ended(waiting)).status, "ready");
  await next.stop();
});
