import assert from "node:assert/strict";
import { once } from "node:events";
import { describe, it } from "node:test";
import { eventually, memoryBackend, startTestServer } from "@coppice/core/testing";
import { plugin as sandboxApi } from "../plugin.js";
import { call } from "../testing/call.js";

describe("a sandbox that is being killed", () => {
  it("A.5 answers 409 to connect, resume and pause, and is unknown to all other requests", async () => {
    const destroying = Promise.withResolvers<void>();
    const memory = memoryBackend({ pausing: {}, onDestroy: () => destroying.promise });
    await using server = await startTestServer({
      plugins: [
        [memory, {}],
        [sandboxApi, {}],
      ],
    });
    const made = await call(server, "POST /v2/sandboxes", { body: { templateID: "base" } });
    const { sandboxID } = made.json;
    const killed = call(server, `DELETE /sandboxes/${sandboxID}`);
    await eventually("it is being killed", () => server.sandboxes.list().length === 0);
    for (const verb of [
      "sandboxes/ID/connect",
      "v2/sandboxes/ID/connect",
      "sandboxes/ID/resume",
      "sandboxes/ID/pause",
    ]) {
      const answer = await call(server, `POST /${verb.replace("ID", sandboxID)}`, { body: { timeout: 60 } });
      const message = `Sandbox "${sandboxID}" is being killed`;
      assert.deepEqual([answer.status, answer.json], [409, { code: 409, message }], verb);
    }
    assert.equal((await call(server, `GET /sandboxes/${sandboxID}`)).status, 404);
    assert.deepEqual((await call(server, "GET /v2/sandboxes")).json, []);
    destroying.resolve();
    assert.equal((await killed).status, 204);
    const gone = await call(server, `POST /v2/sandboxes/${sandboxID}/connect`, { body: {} });
    assert.equal(gone.status, 404);
  });
});

describe("a sandbox that is being made", () => {
  it("A.2 pause in bad state", async () => {
    const begun = Promise.withResolvers<void>();
    const release = Promise.withResolvers<void>();
    const memory = memoryBackend({
      pausing: {},
      async onProvision(step) {
        if (step !== "start") return;
        begun.resolve();
        await release.promise;
      },
    });
    await using server = await startTestServer({
      plugins: [
        [memory, {}],
        [sandboxApi, {}],
      ],
    });
    const making = server.sandboxes.create({
      id: "known",
      template: "base",
      timeoutMs: 60_000,
      secure: true,
    });
    await begun.promise;
    const answer = await call(server, "POST /sandboxes/known/pause", { body: {} });
    const message = "Sandbox 'known' cannot be paused while in 'creating' state";
    assert.deepEqual([answer.status, answer.json], [409, { code: 409, message }]);
    release.resolve();
    await making;
    assert.equal((await call(server, "POST /sandboxes/known/pause", { body: {} })).status, 204);
  });
});

describe("a client that goes away while its sandbox is made", () => {
  it("leaves nothing behind", async () => {
    const started = Promise.withResolvers<void>();
    const memory = memoryBackend({
      async onProvision(step, _spec, signal) {
        if (step !== "start") return;
        started.resolve();
        await once(signal, "abort");
      },
    });
    await using server = await startTestServer({
      plugins: [
        [memory, {}],
        [sandboxApi, {}],
      ],
    });
    const client = new AbortController();
    const request = fetch(`${server.url}/v2/sandboxes`, {
      method: "POST",
      body: JSON.stringify({ templateID: "base" }),
      signal: client.signal,
    });
    await started.promise;
    client.abort();
    await assert.rejects(request);
    await eventually("the sandbox is gone", () => memory.backend.alive.sandboxes === 0);
    assert.deepEqual(server.sandboxes.list(), []);
  });

  it("leaves nothing behind when it is made before that is noticed", async () => {
    const leave = new AbortController();
    const memory = memoryBackend({
      async onProvision(step, spec, signal) {
        if (step !== "start" || spec.template !== "base") return;
        leave.abort();
        // A backend that ignores the signal near the end of a creation.
        await new Promise((resolve) => setTimeout(resolve, 50));
        assert.ok(signal);
      },
    });
    await using server = await startTestServer({
      plugins: [
        [memory, {}],
        [sandboxApi, {}],
      ],
    });
    const request = fetch(`${server.url}/sandboxes`, {
      method: "POST",
      body: JSON.stringify({ templateID: "base", timeout: 60 }),
      signal: leave.signal,
    });
    await assert.rejects(request);
    await eventually("the sandbox is gone", () => memory.backend.alive.sandboxes === 0);
    await eventually("nothing is listed", () => server.sandboxes.list().length === 0);
  });
});
