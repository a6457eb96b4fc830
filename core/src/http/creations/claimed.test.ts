import assert from "node:assert/strict";
import { IncomingMessage, ServerResponse } from "node:http";
import { Socket } from "node:net";
import { describe, it } from "node:test";
import type { Logger } from "../../observe/logger.js";
import { memoryBackend } from "../../testing/memory-backend.js";
import { startTestServer } from "../../testing/start-test-server.js";
import { createSandbox } from "./client-creations.js";

const WANTED = { template: "base", timeoutMs: 60_000, secure: true };

describe("the answer to a create", () => {
  it("ends the sandbox when it could not be sent, and only then", async () => {
    const memory = memoryBackend();
    await using server = await startTestServer({ plugins: [[memory, {}]] });
    const request = { signal: new AbortController().signal, log: {} as Logger };
    const answer = () => new ServerResponse(new IncomingMessage(new Socket()));

    const cut = answer();
    const lost = await createSandbox(server.sandboxes, WANTED, { request, response: cut });
    const killed = new Promise((resolve) => lost.ended.addEventListener("abort", resolve));
    cut.destroy();
    await killed;
    assert.equal(server.sandboxes.find(lost.record.id), undefined);

    const sent = answer();
    sent.assignSocket(new Socket());
    const kept = await createSandbox(server.sandboxes, WANTED, { request, response: sent });
    Object.defineProperty(sent, "writableFinished", { value: true });
    sent.emit("close");
    await new Promise((resolve) => setImmediate(resolve));
    assert.equal(server.sandboxes.get(kept.record.id).record.state, "running");
  });

  it("is not given to a client that left in the very moment its sandbox was made", async () => {
    const memory = memoryBackend();
    await using server = await startTestServer({ plugins: [[memory, {}]] });
    const gone = new AbortController();
    const { sandboxes } = server;
    const late: typeof sandboxes = Object.create(sandboxes, {
      create: {
        async value() {
          const sandbox = await sandboxes.create(WANTED);
          gone.abort();
          return sandbox;
        },
      },
      kill: { value: (id: string) => sandboxes.kill(id) },
    });
    const response = new ServerResponse(new IncomingMessage(new Socket()));
    const request = { signal: gone.signal, log: {} as Logger };
    await assert.rejects(createSandbox(late, WANTED, { request, response }), { code: "canceled" });
    assert.deepEqual(sandboxes.list(), []);
  });
});
