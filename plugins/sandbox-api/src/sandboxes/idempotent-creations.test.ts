import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import {
  fakeClock,
  memoryBackend,
  type MemoryBackendOptions,
  startTestServer,
  type TestServer,
} from "@coppice/core/testing";
import { definePlugin, SCOPES } from "@coppice/core";
import { plugin as sandboxApi } from "../plugin.js";

const HOUR_MS = 3_600_000;

/** A header names the caller. */
const tenants = definePlugin({
  name: "tenants",
  setup(plugin) {
    plugin.guard("api", ({ headers }) => ({
      tenant: String(headers["x-tenant"] ?? "default"),
      name: "key",
      scopes: new Set(SCOPES),
    }));
  },
});

async function start(script: MemoryBackendOptions = {}, more: { dataDir?: string; settings?: object } = {}) {
  const { dataDir, settings = {} } = more;
  const clock = fakeClock();
  const memory = memoryBackend(script);
  const server = await startTestServer({
    clock,
    ...(dataDir !== undefined && { dataDir }),
    server: { sandboxes: { onShutdown: "keep" } },
    plugins: [
      [memory, {}],
      [sandboxApi, settings],
      [tenants, {}],
    ],
  });
  return { clock, memory, server };
}

async function create(
  server: TestServer,
  key: string,
  body: object = {},
  { signal, tenant = "default" }: { readonly signal?: AbortSignal; readonly tenant?: string } = {},
) {
  const response = await fetch(`${server.url}/v2/sandboxes`, {
    method: "POST",
    headers: { "idempotency-key": key, "x-tenant": tenant },
    body: JSON.stringify({ templateID: "base", ...body }),
    ...(signal && { signal }),
  });
  const json = (await response.json()) as { readonly sandboxID: string; readonly message: string };
  return { status: response.status, id: json.sandboxID, message: json.message };
}

describe("a creation with an Idempotency-Key", () => {
  it("keeps the keys of a tenant while another one makes many", async () => {
    const { server } = await start({}, { settings: { maxIdempotencyKeys: 4 } });
    await using _server = server;
    const { id } = await create(server, "mine", {}, { tenant: "acme" });
    for (let index = 0; index < 10; index += 1) await create(server, `key${index}`, {}, { tenant: "evil" });
    await server.sandboxes.kill(id);
    // Its sandbox has ended: that is known only by the key.
    assert.equal((await create(server, "mine", {}, { tenant: "acme" })).status, 409);
  });

  it("is one sandbox for repeated and concurrent requests", async () => {
    const { server, memory } = await start();
    await using _server = server;
    const answers = await Promise.all(Array.from({ length: 20 }, () => create(server, "one")));
    assert.equal(new Set(answers.map(({ id }) => id)).size, 1);
    assert.deepEqual(new Set(answers.map(({ status }) => status)), new Set([201]));
    const reordered = { metadata: { b: "2", a: "1" } };
    const two = await create(server, "two", { metadata: { a: "1", b: "2" } });
    assert.equal((await create(server, "two", reordered)).id, two.id);
    assert.notEqual(two.id, answers[0]?.id);
    assert.equal(memory.backend.alive.sandboxes, 2);
  });

  it("belongs to its tenant: another one's with the same key is separate", async () => {
    const { server } = await start();
    await using _server = server;
    const ours = await create(server, "key");
    const theirs = await create(server, "key", { timeout: 60 }, { tenant: "other" });
    assert.deepEqual([ours.status, theirs.status], [201, 201]);
    assert.notEqual(theirs.id, ours.id);
    assert.equal((await create(server, "key")).id, ours.id);
    assert.equal((await create(server, "key", { timeout: 60 }, { tenant: "other" })).id, theirs.id);
  });

  it("is refused for another request, for an ended sandbox, and with an invalid key", async () => {
    const { server } = await start();
    await using _server = server;
    const { id } = await create(server, "key");
    const other = await create(server, "key", { timeout: 60 });
    assert.deepEqual(
      [other.status, other.message],
      [409, "this Idempotency-Key was used for another request"],
    );
    await server.sandboxes.kill(id);
    const ended = await create(server, "key");
    assert.equal(ended.status, 409);
    assert.match(ended.message, /has ended$/);
    for (const key of ["a b", "x".repeat(256)]) assert.equal((await create(server, key)).status, 400, key);
  });

  it("that failed may be tried again, and goes on when its client leaves", async () => {
    let failures = 1;
    const reached = Promise.withResolvers<void>();
    const { promise: mayGoOn, resolve: goOn } = Promise.withResolvers<void>();
    const { server, memory } = await start({
      async onProvision(step) {
        if (step === "reserve" && failures-- > 0) throw new Error("no room");
        if (step !== "start") return;
        reached.resolve();
        await mayGoOn;
      },
    });
    await using _server = server;
    assert.equal((await create(server, "key")).status, 500);
    const client = new AbortController();
    const left = assert.rejects(create(server, "key", {}, { signal: client.signal }));
    await reached.promise;
    client.abort();
    await left;
    const again = create(server, "key");
    goOn();
    const { status, id } = await again;
    assert.equal(status, 201);
    assert.deepEqual([...memory.backend.sandboxes.keys()], [id]);
  });

  it("is remembered for its time, and while its sandbox runs by the next server, too", async () => {
    const dataDir = await mkdtemp(join(tmpdir(), "coppice-idempotency-"));
    try {
      const first = await start({}, { dataDir });
      const { id } = await create(first.server, "key", { timeout: 86_400 });
      await first.server.stop();
      const onRecover = () => [...first.memory.backend.sandboxes.values()];
      const second = await start(
        { onRecover },
        { dataDir, settings: { idempotencyKept: "1h", maxIdempotencyKeys: 2 } },
      );
      await using _server = second.server;
      assert.equal((await create(second.server, "key", { timeout: 86_400 })).id, id);
      assert.equal((await create(second.server, "key")).status, 409);
      await second.clock.advance(HOUR_MS);
      const later = await create(second.server, "key", { timeout: 86_400 });
      assert.equal(later.status, 201);
      assert.notEqual(later.id, id);
      await second.server.sandboxes.kill(later.id);
      for (const key of ["2", "3"]) await create(second.server, key);
      assert.equal(
        (await create(second.server, "key", { timeout: 86_400 })).status,
        201,
        "the oldest is forgotten",
      );
    } finally {
      await rm(dataDir, { recursive: true, force: true });
    }
  });
});
