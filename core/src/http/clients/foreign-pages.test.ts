import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type IncomingMessage, request } from "node:http";
import { connect } from "node:net";
import type { Duplex } from "node:stream";
import { after, before, describe, it } from "node:test";
import { definePlugin } from "../../plugin/plugin.js";
import { memoryBackend } from "../../testing/memory-backend.js";
import { startTestServer, type TestServer } from "../../testing/start-test-server.js";

const program = createServer((_message, response) => response.end("ok"));
const PORTS = { 8080: (connection: Duplex) => void program.emit("connection", connection) };

describe("foreign web pages", { timeout: 60_000 }, () => {
  const PAGE = "https://evil.example";
  const guarded = definePlugin({
    name: "guarded",
    setup(plugin) {
      plugin.guard("api", () => undefined);
      plugin.http("api").all("/", (ctx) => {
        ctx.body = "secret";
      });
    },
  });
  const http = { allowedHosts: ["Proxy.example"], allowedOrigins: ["https://app.example"] };
  let server: TestServer;
  let id: string;
  before(async () => {
    server = await startTestServer({
      plugins: [[memoryBackend({ ports: PORTS }), {}], [guarded]],
      server: { http, domain: "sandboxes.example" },
    });
    const made = await server.sandboxes.create({ template: "base", timeoutMs: undefined, secure: false });
    id = made.record.id;
  });
  after(() => server.stop());

  /** Status of a request with a browser's headers, which `fetch` does not send. */
  async function statusFor(headers: Record<string, string>, method = "GET"): Promise<number> {
    const { promise, resolve, reject } = Promise.withResolvers<number>();
    const asked = request(server.url, { headers, method, agent: false });
    asked.once("response", (response) => {
      response.resume();
      resolve(response.statusCode ?? 0);
    });
    asked.once("upgrade", (response, socket) => {
      socket.destroy();
      resolve(response.statusCode ?? 0);
    });
    asked.once("error", reject).end();
    return promise;
  }

  const preflight = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "e2b-sandbox-id",
  };
  const upgrade = { connection: "Upgrade", upgrade: "websocket" };

  it("are refused under a rebound name of their own, though a guard would admit them", async () => {
    for (const host of [
      "evil.example",
      "localhost.evil.example:80",
      "evil-localhost",
      "sandboxes.example.evil.example",
      "evilsandboxes.example",
    ]) {
      assert.equal(await statusFor({ host }), 403, host);
      assert.equal(await statusFor({ host, ...preflight }, "OPTIONS"), 403, host);
      assert.equal(await statusFor({ host, ...upgrade }), 403, host);
      const addressed = { "e2b-sandbox-id": id, "e2b-sandbox-port": "8080" };
      assert.equal(await statusFor({ host, ...addressed }), 403, host);
    }
    for (const host of [
      "localhost:3000",
      "[::1]:3000",
      "192.0.2.7",
      "api.sandboxes.example",
      "proxy.example:443",
    ])
      assert.equal(await statusFor({ host }), 200, host);
  });

  it("are refused with a foreign origin, for every kind of request", async () => {
    const ways: readonly (readonly [Record<string, string>, string])[] = [
      [{}, "GET"],
      [{ "content-type": "text/plain" }, "POST"],
      [preflight, "OPTIONS"],
      [upgrade, "GET"],
      [{ "e2b-sandbox-id": id, "e2b-sandbox-port": "8080" }, "POST"],
      [{ "e2b-sandbox-id": id, "e2b-sandbox-port": "8080", ...upgrade }, "GET"],
    ];
    for (const origin of [
      PAGE,
      "null",
      "https://localhost.evil.example",
      "file://",
      `http://3000-iother.localhost`,
    ])
      for (const [headers, method] of ways)
        assert.equal(
          await statusFor({ host: "127.0.0.1", origin, ...headers }, method),
          403,
          `${origin} ${method}`,
        );
    for (const origin of ["http://localhost:5173", "http://127.0.0.1", "https://app.example"])
      assert.equal(await statusFor({ host: "localhost", origin }), 200, origin);
  });

  it("need only their credentials where a sandbox is addressed by its public name", async () => {
    const host = `8080-${id}.sandboxes.example`;
    assert.equal(await statusFor({ host, origin: PAGE }), 200);
    assert.equal(await statusFor({ host: "api.sandboxes.example", origin: PAGE }), 200);
  });

  it("of one sandbox reach its other ports, not those of another", async () => {
    await using local = await startTestServer({
      plugins: [[memoryBackend({ ports: PORTS }), {}]],
    });
    const { record } = await local.sandboxes.create({
      template: "base",
      timeoutMs: undefined,
      secure: false,
    });
    const from = async (origin: string): Promise<number> => {
      const headers = { host: `8080-${record.id}.localhost:3000`, origin };
      const [response] = (await once(request(local.url, { headers, agent: false }).end(), "response")) as [
        IncomingMessage,
      ];
      response.resume();
      return response.statusCode ?? 0;
    };
    assert.equal(await from(`http://3000-${record.id}.localhost:3000`), 200);
    assert.equal(await from(`http://3000-iother.localhost:3000`), 403);
  });

  it("cannot bypass the check of the host by naming two", async () => {
    const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
    socket.write("GET / HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\nconnection: close\r\n\r\n");
    let text = "";
    for await (const chunk of socket) text += String(chunk);
    assert.match(text, /^HTTP\/1\.1 400 /);
  });
});
