import assert from "node:assert/strict";
import { createServer, type Server } from "node:http";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { describe, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { Sandbox } from "@e2b/code-interpreter";
import { API_KEY } from "../../harness/server/api-key.js";
import { onEachBackend } from "../../harness/server/on-each-backend.js";
import { Scrape } from "../../harness/clients/scrape.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

interface Answer {
  readonly status: number;
  readonly code?: number;
  readonly message?: string;
  readonly sandboxID?: string;
}

/** Creates a sandbox with a readiness probe. */
async function create(url: string, readinessProbe: object, signal?: AbortSignal): Promise<Answer> {
  const response = await fetch(`${url}/v2/sandboxes`, {
    method: "POST",
    headers: { "x-api-key": API_KEY, "content-type": "application/json" },
    body: JSON.stringify({ templateID: "base", timeout: 60, readinessProbe }),
    ...(signal && { signal }),
  });
  return { status: response.status, ...((await response.json()) as object) };
}

onEachBackend("a readiness probe", ({ server }) => {
  it("that is a command is tried until it succeeds, and the sandbox is what it left", async () => {
    const command = "echo tried >> tries; test $(wc -l < tries) -ge 3";
    const { status, sandboxID = "" } = await create(server().url, { type: "shell", command, intervalMs: 50 });
    assert.equal(status, 201);
    const sandbox = await Sandbox.connect(sandboxID);
    assert.equal(await sandbox.files.read("tries"), "tried\ntried\ntried\n");
    const scraped = await Scrape.of(server().urls["ops"] ?? "");
    assert.equal(scraped.sum("coppice_sandboxes_ready_seconds_count", 'probe="shell"'), 1);
    await sandbox.kill();
  });

  it("that does not succeed in time is answered 503 with the reason, and nothing is left", async () => {
    const before = server().sandboxes.list().length;
    for (const [probe, why] of [
      [{ type: "tcp", port: 1 }, /port 1: ECONNREFUSED|nothing listens on port 1|cannot connect to port 1/],
      [{ type: "http", port: 1 }, /port 1/],
      [{ type: "shell", command: ["/bin/sh", "-c", "exit 43"] }, /its command ended with exit code 43$/],
      [{ type: "shell", command: "sleep 300" }, /an attempt took longer than \d+ ms$/],
    ] as const) {
      const { status, code, message = "" } = await create(server().url, { ...probe, timeoutMs: 400 });
      assert.deepEqual([status, code], [503, 503], message);
      assert.match(message, /^the sandbox was not ready within 400 ms: /);
      assert.match(message, why);
    }
    assert.equal(server().sandboxes.list().length, before);
  });

  it("that makes no sense is answered 400", async () => {
    for (const probe of [{}, { type: "tcp" }, { type: "tcp", port: 80, timeoutMs: 300_001 }, "tcp"]) {
      const { status, message } = await create(server().url, probe as object);
      assert.equal(status, 400, message);
    }
  });

  it("ends with the client that waits for it", async () => {
    const before = server().sandboxes.list().length;
    const leaving = new AbortController();
    const asked = create(server().url, { type: "tcp", port: 1 }, leaving.signal).catch(() => undefined);
    await eventually("it is being made", () => server().sandboxes.list().length > before);
    leaving.abort();
    await asked;
    await eventually("it is gone", () => server().sandboxes.list().length === before);
  });
});

describe("a readiness probe of a port", { timeout: 240_000 }, () => {
  it("succeeds when something listens, over HTTP when that answers well", async () => {
    await using server = await startFullServer();
    let status = 503;
    const late = createServer((message, response) =>
      response.writeHead(message.url === "/up" ? status : 404).end(),
    );
    // A port that is free until the server listens on it.
    const port = await listen(late, 0);
    late.close();
    for (const probe of [
      { type: "tcp", port },
      { type: "http", port, path: "/up" },
    ]) {
      const asked = create(server.url, { ...probe, intervalMs: 50 });
      await eventually("it is being made", () => server.sandboxes.list().length > 0);
      await listen(late, port);
      status = 204;
      const { status: answered, sandboxID = "", message } = await asked;
      assert.equal(answered, 201, message);
      await server.sandboxes.kill(sandboxID);
      late.closeAllConnections();
      late.close();
      await once(late, "close");
      status = 503;
    }
  });
});

async function listen(server: Server, port: number): Promise<number> {
  server.listen(port, "127.0.0.1");
  await once(server, "listening");
  return (server.address() as AddressInfo).port;
}
