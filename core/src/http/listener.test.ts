import assert from "node:assert/strict";
import { once } from "node:events";
import { Agent, type IncomingMessage, request } from "node:http";
import { connect, type Socket } from "node:net";
import { Readable } from "node:stream";
import { it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { z } from "zod";
import { SandboxError } from "../kernel/errors.js";
import type { ErrorCode } from "../kernel/reasons.js";
import { createLogger } from "../observe/logger.js";
import { definePlugin } from "../plugin/plugin.js";
import { greetingSocket, HANDSHAKE } from "../testing/greeting-socket.js";
import { memoryBackend } from "../testing/memory-backend.js";
import { Sandboxes } from "../sandbox/life/sandboxes.js";
import { fakeClock } from "../testing/fake-clock.js";
import { startTestServer } from "../testing/start-test-server.js";
import { headerLines } from "./messages/heads.js";
import { HttpError } from "./messages/http-error.js";
import { readJsonBody } from "./messages/json-body.js";
import { requestOf, targetOf } from "./surfaces/surface-request.js";
import { Targets } from "./surfaces/targets.js";

/** Open connections of clients that wait for an answer, by sandbox. */
const served = new Map<string, Socket>();

const routes = definePlugin({
  name: "routes",
  setup(plugin) {
    const api = plugin.http("api", { errors: "e2b" });
    api.get("/refuse/:code", (ctx) => {
      if (ctx.params["code"] === "bug") throw new TypeError("the secret is 42");
      const code = ctx.params["code"] as ErrorCode;
      throw new SandboxError({ reason: "test.refused", code }, `refused: ${ctx.params["code"]}`);
    });
    api.get("/teapot", () => {
      throw new HttpError(418, "short and stout", { reason: "test.teapot", body: { teapot: true } });
    });
    api.post("/body", async (ctx) => {
      requestOf(ctx).log.debug("a body comes");
      ctx.body = await readJsonBody(ctx.req, z.object({ name: z.string() }), { limitBytes: 100 });
    });
    api.post("/beginning", async (ctx) => {
      await ctx.req[Symbol.asyncIterator]().next();
      ctx.body = "enough";
    });
    api.get("/never", async (ctx) => {
      await once(ctx.res, "close");
    });
    api.post("/unread", async (ctx) => {
      ctx.req.resume();
      await once(ctx.req, "close");
    });
    plugin.guard("api", ({ headers }) => {
      if (headers["x-stranger"] !== undefined) throw new SandboxError("access_token_invalid", "who are you?");
    });
    const envd = plugin.http("envd", { errors: "e2b" });
    envd.get("/who", (ctx) => {
      ctx.body = { id: targetOf(ctx).record.id };
    });
    envd.get("/forever", (ctx) => {
      ctx.body = new Readable({ read: () => undefined });
      ctx.res.write("started");
      served.set(targetOf(ctx).record.id, ctx.req.socket);
    });
    plugin.webSocket("envd", ["/socket/:name"], greetingSocket);
  },
});

const serve = () => startTestServer({ plugins: [[routes], [memoryBackend()]] });

function linesOf(headers: Readonly<Record<string, string>>): string {
  return headerLines(Object.entries(headers).flat());
}

async function answer(url: string, init?: RequestInit): Promise<readonly [number, unknown]> {
  const response = await fetch(url, init);
  const text = await response.text();
  return [response.status, response.headers.get("content-type")?.includes("json") ? JSON.parse(text) : text];
}

it("errors become the contract's status and body, and unexpected ones are hidden", async () => {
  await using server = await serve();
  assert.deepEqual(await answer(`${server.url}/refuse/not_found`), [
    404,
    { code: 404, message: "refused: not_found" },
  ]);
  assert.deepEqual(await answer(`${server.url}/refuse/resource_exhausted`), [
    429,
    { code: 429, message: "refused: resource_exhausted" },
  ]);
  assert.deepEqual(await answer(`${server.url}/refuse/bug`), [500, { code: 500, message: "internal error" }]);
  assert.deepEqual(await answer(`${server.url}/teapot`), [418, { teapot: true }]);
  assert.equal((await answer(`${server.url}/nowhere`))[0], 404);
  assert.equal((await answer(`${server.url}/teapot`, { method: "DELETE" }))[0], 405);
});

it("a body that is no JSON, has the wrong shape or is too long is refused, and the next request is served", async () => {
  await using server = await serve();
  const post = (body: string) => answer(`${server.url}/body`, { method: "POST", body });
  assert.match(
    String((await post("{"))[1] && JSON.stringify((await post("{"))[1])),
    /Error when parsing request/,
  );
  assert.deepEqual((await post('{"name":1}'))[0], 400);
  assert.match(JSON.stringify((await post('{"name":1}'))[1]), /validation error: name: /);
  assert.deepEqual(await post(`{"name":"${"x".repeat(200)}"}`), [
    413,
    { code: 413, message: "the request body is larger than 100 bytes" },
  ]);
  assert.deepEqual(await post('{"name":"fine"}'), [200, { name: "fine" }]);
});

it("a body of which only the beginning is read does not cost the next requests their connection", async () => {
  await using server = await serve();
  const socket = connect(Number(new URL(server.url).port), "127.0.0.1").setEncoding("utf8");
  const closed = once(socket, "close");
  const answered = async (what: RegExp): Promise<void> => {
    let text = "";
    while (!what.test(text)) {
      const [piece] = (await Promise.race([once(socket, "data"), closed])) as [unknown];
      assert.equal(typeof piece, "string", "the connection was closed");
      text += String(piece);
    }
  };
  socket.write("POST /beginning HTTP/1.1\r\nhost: localhost\r\ncontent-length: 8\r\n\r\nhalf");
  await answered(/enough$/);
  socket.write("rest");
  // The server closes a connection with an incomplete request after a second.
  for (const endMs = performance.now() + 1_500; performance.now() < endMs; await pause(100)) {
    socket.write("GET /teapot HTTP/1.1\r\nhost: localhost\r\n\r\n");
    await answered(/\{"teapot":true\}$/);
  }
  socket.destroy();
});

it("a guard keeps a request out before any route", async () => {
  await using server = await serve();
  assert.deepEqual(await answer(`${server.url}/teapot`, { headers: { "x-stranger": "1" } }), [
    401,
    { code: 401, message: "who are you?" },
  ]);
});

it("a guard of requests to sandboxes protects every port, also from upgrades", async () => {
  const asked: number[] = [];
  const guarded = definePlugin({
    name: "guarded",
    requires: { targets: Targets },
    setup(_plugin, { targets }) {
      targets.guard(({ target }) => {
        asked.push(target?.port ?? 0);
        throw new SandboxError("access_token_invalid", "who are you?");
      });
    },
  });
  await using server = await startTestServer({ plugins: [[guarded], [routes], [memoryBackend()]] });
  const { record } = await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
  const ports = [49983, 8080];
  for (const port of ports) {
    const headers = { "e2b-sandbox-id": record.id, "e2b-sandbox-port": String(port) };
    for (const upgrade of [{}, { connection: "Upgrade", upgrade: "websocket" }]) {
      const refused = request(`${server.url}/socket/one`, {
        headers: { ...headers, ...upgrade },
        agent: false,
      });
      refused.on("upgrade", (_response, socket) => socket.destroy()).end();
      const [response] = (await once(refused, "response", { signal: AbortSignal.timeout(5_000) })) as [
        IncomingMessage,
      ];
      response.resume();
      assert.equal(response.statusCode, 401, `${port} ${JSON.stringify(upgrade)}`);
    }
  }
  assert.deepEqual(
    asked,
    ports.flatMap((port) => [port, port]),
  );
});

it("a client that leaves during a guard aborts the signal, and its sandbox is unused again", async () => {
  const clock = fakeClock();
  const looking = Promise.withResolvers<void>();
  const looked = Promise.withResolvers<void>();
  const slow = definePlugin({
    name: "slow",
    requires: { targets: Targets },
    setup(_plugin, { targets }) {
      targets.guard(async ({ signal }) => {
        looking.resolve();
        try {
          await once(signal, "abort", { signal: AbortSignal.timeout(5_000) });
          looked.resolve();
        } catch (error) {
          looked.reject(error);
        }
      });
    },
  });
  await using server = await startTestServer({
    clock,
    plugins: [[slow], [routes], [memoryBackend({ pausing: {} })]],
  });
  const made = await server.sandboxes.create({
    template: "base",
    timeoutMs: 60_000,
    secure: false,
    autoResume: true,
    onTimeout: "pause",
  });
  const headers = { "e2b-sandbox-id": made.record.id, "e2b-sandbox-port": "49983" };
  const asked = request(`${server.url}/who`, { headers, agent: false });
  asked.on("error", () => undefined).end();
  await looking.promise;
  asked.destroy();
  await looked.promise;
  await pause(10);
  await clock.advance(150_000);
  for (let waits = 0; server.sandboxes.get(made.record.id).record.state !== "paused"; waits++) {
    assert.ok(waits < 100, "a request that is over still counts");
    await pause(10);
  }
});

it("a valid request id is kept, an invalid one replaced", async () => {
  await using server = await serve();
  const idOf = async (id: string) =>
    (await fetch(`${server.url}/teapot`, { headers: { "x-request-id": id } })).headers.get("x-request-id");
  assert.equal(await idOf("req-1.a"), "req-1.a");
  assert.match((await idOf("no spaces, please")) ?? "", /^[0-9a-f-]{36}$/);
});

it("a request is targeted by headers and by host, on every listener", async () => {
  await using server = await serve();
  const { record } = await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
  for (const url of [server.url, server.urls["envd"]]) {
    const byHeaders = await answer(`${url}/who`, {
      headers: { "e2b-sandbox-id": record.id, "e2b-sandbox-port": "49983" },
    });
    assert.deepEqual(byHeaders, [200, { id: record.id }]);
  }
  const message = request(`${server.url}/who`, { headers: { host: `49983-${record.id}.localhost` } }).end();
  const [response] = (await once(message, "response")) as [Readable & { statusCode: number }];
  assert.equal(response.statusCode, 200);
  response.resume();
});

it("a sandbox that does not exist, and one that ended, get the same 502", async () => {
  await using server = await serve();
  const { record } = await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
  await server.sandboxes.kill(record.id);
  for (const id of [record.id, "inever"]) {
    assert.deepEqual(
      await answer(`${server.url}/who`, { headers: { "e2b-sandbox-id": id, "e2b-sandbox-port": "49983" } }),
      [502, { sandboxId: id, message: "The sandbox was not found", code: 502 }],
    );
  }
});

it("a request to a sandbox that ends during its lookup is answered as for an ended one", async () => {
  const ending = definePlugin({
    name: "ending",
    requires: { targets: Targets, sandboxes: Sandboxes },
    setup(_plugin, { targets, sandboxes }) {
      targets.add(async ({ headers }) => {
        const sandbox = sandboxes.get(String(headers["x-ends"]));
        await sandboxes.kill(sandbox.record.id);
        return { sandbox, port: 49983 };
      });
    },
  });
  await using server = await startTestServer({ plugins: [[routes], [ending], [memoryBackend()]] });
  const { record } = await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
  assert.deepEqual(await answer(`${server.url}/who`, { headers: { "x-ends": record.id } }), [
    502,
    { sandboxId: record.id, message: "The sandbox was not found", code: 502 },
  ]);
});

it("preflight requests to a sandbox are answered", async () => {
  await using server = await serve();
  const { record } = await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
  const response = await fetch(`${server.url}/who`, {
    method: "OPTIONS",
    headers: {
      "e2b-sandbox-id": record.id,
      "e2b-sandbox-port": "49983",
      "access-control-request-headers": "x-access-token",
    },
  });
  assert.equal(response.status, 204);
  assert.equal(response.headers.get("access-control-allow-origin"), "*");
  assert.equal(response.headers.get("access-control-allow-headers"), "x-access-token");
  const { "access-control-allow-methods": methods, "access-control-max-age": age } = Object.fromEntries(
    response.headers,
  );
  assert.deepEqual([methods, age], ["HEAD, GET, POST, PUT, PATCH, DELETE", "7200"]);
});

it("a browser may name a sandbox in a header, and can read that it is gone", async () => {
  await using server = await serve();
  const names = "e2b-sandbox-port, E2b-Sandbox-Id,x-access-token";
  const asked = await fetch(`${server.url}/who`, {
    method: "OPTIONS",
    headers: { "access-control-request-method": "GET", "access-control-request-headers": names },
  });
  assert.equal(asked.status, 204);
  assert.equal(asked.headers.get("access-control-allow-origin"), "*");
  assert.equal(asked.headers.get("access-control-allow-headers"), names);
  const gone = await fetch(`${server.url}/who`, {
    headers: { "e2b-sandbox-id": "ino0such0one", "e2b-sandbox-port": "49983" },
  });
  assert.deepEqual([gone.status, gone.headers.get("access-control-allow-origin")], [502, "*"]);
  const api = await fetch(`${server.url}/teapot`, { method: "OPTIONS" });
  assert.equal(api.headers.get("access-control-allow-origin"), null, "what is no sandbox's is for nobody");
});

it("when a sandbox ends, the connections that serve it break instead of ending", async () => {
  await using server = await serve();
  const { record } = await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
  const response = await fetch(`${server.url}/forever`, {
    headers: { "e2b-sandbox-id": record.id, "e2b-sandbox-port": "49983" },
    signal: AbortSignal.timeout(5_000),
  });
  const reading = response.text();
  await server.sandboxes.kill(record.id);
  await assert.rejects(reading, /terminated/);
  // The server resets the stream instead of ending it: older SDKs report an end as a protocol error.
  const upgrade = linesOf(HANDSHAKE);
  for (const [path, more] of [
    ["/forever", ""],
    ["/socket/one", upgrade],
  ] as const) {
    const { id } = (await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false }))
      .record;
    const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
    socket.write(
      `GET ${path} HTTP/1.1\r\nhost: localhost\r\n${more}e2b-sandbox-id: ${id}\r\ne2b-sandbox-port: 49983\r\n\r\n`,
    );
    await once(socket, "data");
    const failed = once(socket.resume(), "error", { signal: AbortSignal.timeout(5_000) });
    await server.sandboxes.kill(id);
    assert.equal(((await failed) as readonly NodeJS.ErrnoException[])[0]?.code, "ECONNRESET", path);
  }
});

it("a connection that is being ended when its sandbox ends is closed all the same", async () => {
  await using server = await serve();
  const { record } = await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
  const client = connect(Number(new URL(server.url).port), "127.0.0.1");
  client.on("error", () => undefined);
  client.write(
    `GET /forever HTTP/1.1\r\nhost: localhost\r\ne2b-sandbox-id: ${record.id}\r\ne2b-sandbox-port: 49983\r\n\r\n`,
  );
  await once(client, "data");
  const connection = served.get(record.id);
  assert.ok(connection);
  // Node ends its side when the client ends, in the next turn of the event loop.
  connection.once("end", () => void server.sandboxes.kill(record.id));
  client.end();
  await once(connection, "close", { signal: AbortSignal.timeout(5_000) });
});

it("a connection outlives the sandbox of its request, and serves the next request to another", async () => {
  await using server = await serve();
  const make = () => server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
  const [gone, next] = [(await make()).record.id, (await make()).record.id];
  using agent = {
    agent: new Agent({ keepAlive: true, maxSockets: 1 }),
    [Symbol.dispose]: () => agent.agent.destroy(),
  };
  const who = async (id: string): Promise<readonly [unknown, text: string]> => {
    const headers = { "e2b-sandbox-id": id, "e2b-sandbox-port": "49983" };
    const asked = request(`${server.url}/who`, { headers, agent: agent.agent }).end();
    const [response] = (await once(asked, "response")) as [IncomingMessage];
    const { localPort } = response.socket;
    let text = "";
    for await (const chunk of response) text += String(chunk);
    return [localPort, text];
  };
  const [port] = await who(gone);
  await server.sandboxes.kill(gone);
  assert.deepEqual(await who(next), [port, JSON.stringify({ id: next })]);
});

it("upgrades find their handler; a wrong path and a dead sandbox are refused on the socket", async () => {
  await using server = await serve();
  const { record } = await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
  const upgrade = async (path: string, id: string): Promise<string> => {
    const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
    const headers = { "host": "localhost", "e2b-sandbox-id": id, "e2b-sandbox-port": "49983", ...HANDSHAKE };
    socket.write(`GET ${path} HTTP/1.1\r\n${linesOf(headers)}\r\n`);
    const [data] = (await once(socket, "data")) as [Buffer];
    socket.destroy();
    return data.toString();
  };
  assert.match(await upgrade("/socket/one", record.id), /^HTTP\/1\.1 101 /);
  assert.match(await upgrade("/socket/one/two", record.id), /^HTTP\/1\.1 404 /);
  assert.match(await upgrade("/socket/one", "inever"), /^HTTP\/1\.1 502 .*The sandbox was not found/s);
});

it("garbage on the socket does not disturb the server", async () => {
  await using server = await serve();
  for (const garbage of [
    "\x16\x03\x01\x02",
    "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\ncontent-length: x\r\n\r\n",
    "GET //[ HTTP/1.1\r\nhost: localhost\r\n\r\n",
  ]) {
    const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
    socket.on("error", () => undefined);
    socket.write(garbage);
    await Promise.race([once(socket, "close"), once(socket, "data"), pause(500)]);
    socket.destroy();
  }
  assert.equal((await answer(`${server.url}/teapot`))[0], 418);
});

it("a stop waits for running requests, then cuts them", async () => {
  const REQUESTS = 2;
  let begun = 0;
  const bothBegan = Promise.withResolvers<void>();
  const slow = definePlugin({
    name: "slow",
    setup(plugin) {
      plugin.http("api", { errors: "e2b" }).get("/slow/:ms", async (ctx) => {
        begun += 1;
        if (begun === REQUESTS) bothBegan.resolve();
        await pause(Number(ctx.params["ms"]), undefined, { signal: requestOf(ctx).signal });
        ctx.body = "done";
      });
    },
  });
  const server = await startTestServer({ plugins: [[slow]], server: { http: { drainTimeout: "300ms" } } });
  const quick = fetch(`${server.url}/slow/50`).then((response) => response.text());
  const endless = fetch(`${server.url}/slow/60000`);
  const cut = assert.rejects(endless);
  await bothBegan.promise;
  await server.stop();
  assert.equal(await quick, "done");
  await cut;
});

it("the control plane ignores the SDKs' name for the debug sandbox", async () => {
  await using server = await serve();
  for (const path of ["/teapot", "/who"]) {
    const answer = await fetch(`${server.url}${path}`, {
      headers: { "e2b-sandbox-id": "debug_sandbox_id", "e2b-sandbox-port": "49983" },
    });
    assert.deepEqual([answer.status, await answer.text()], [400, "Invalid sandbox ID"], path);
  }
});

it("a client that does not finish its headers, and one that falls silent, lose their connection", async () => {
  await using server = await startTestServer({
    plugins: [[routes]],
    server: { http: { headersTimeout: "100ms", idleTimeout: "2s", drainTimeout: "200ms" } },
  });
  const secondsUntilClosed = async (text: string): Promise<number> => {
    const startedAt = performance.now();
    const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
    socket.on("error", () => undefined).resume();
    socket.write(text);
    await once(socket, "close", { signal: AbortSignal.timeout(10_000) });
    return (performance.now() - startedAt) / 1000;
  };
  assert.ok((await secondsUntilClosed("GET / HTTP/1.1\r\nhost: ")) < 1.9, "headers that never end");
  assert.ok((await secondsUntilClosed("GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")) < 5, "a kept connection");
  for (const [path, who] of [
    ["/", "nobody"],
    ["/body", "a route"],
  ] as const) {
    const unfinished = `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n`;
    assert.ok((await secondsUntilClosed(unfinished)) < 5, `a body that never comes, and ${who} reads`);
  }
});

it("guards and routes see one path: ambiguous ones are refused", async () => {
  const seen: string[] = [];
  const routed: string[] = [];
  const watched = definePlugin({
    name: "watched",
    setup(plugin) {
      plugin.guard("api", ({ url }) => void seen.push(url.pathname));
      plugin.http("api", { errors: "e2b" }).get("/templates/:id", (ctx) => {
        routed.push(ctx.path);
        ctx.body = ctx.path;
      });
    },
  });
  await using server = await startTestServer({ plugins: [[watched]] });
  const statusOf = async (path: string): Promise<string> => {
    const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
    socket.write(`GET ${path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n`, "latin1");
    let text = "";
    for await (const chunk of socket) text += String(chunk);
    return /^HTTP\/1\.1 (\d+)/.exec(text)?.[1] ?? "";
  };
  for (const path of [
    "/templates/x\\..\\..\\health",
    "/templates/x/../../health",
    "/templates/%2e%2e/health",
    "/templates/.%2E",
    "/templates/./x",
    "/templates//x",
    "//localhost/templates/x",
    "http://localhost/templates/../x",
  ])
    assert.equal(await statusOf(path), "400", path);
  assert.deepEqual(seen, [], "no guard was asked");
  for (const path of [
    "/templates/x",
    "/templates/..x",
    "/templates/a%2Fb?c=//..",
    "http://localhost/templates/x",
  ])
    assert.equal(await statusOf(path), "200", path);
  assert.equal(await statusOf('/templates/a"b'), "200");
  assert.equal(seen.at(-1), "/templates/a%22b");
  assert.deepEqual(routed, seen);
});

it("connections are limited by address and in total, and a closed one makes room", async () => {
  const open = (server: { readonly url: string }) => {
    const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
    socket.on("error", () => undefined);
    return socket;
  };
  const isServed = async (socket: ReturnType<typeof open>): Promise<boolean> => {
    socket.write("GET /teapot HTTP/1.1\r\nhost: localhost\r\n\r\n");
    const { promise, resolve } = Promise.withResolvers<boolean>();
    socket.once("data", () => resolve(true)).once("close", () => resolve(false));
    return promise;
  };
  const start = (http: object) =>
    startTestServer({
      plugins: [[routes], [memoryBackend()]],
      server: { http: { maxConnectionsPerAddress: 2, ...http } },
    });
  await using server = await start({});
  const [first, second, third] = [open(server), open(server), open(server)];
  assert.deepEqual(await Promise.all([first, second, third].map(isServed)), [true, true, false]);
  first.destroy();
  let isThereRoom = false;
  for (const endMs = performance.now() + 5_000; !isThereRoom;) {
    assert.ok(performance.now() < endMs, "a closed connection still counts");
    const next = open(server);
    isThereRoom = await isServed(next);
    next.destroy();
  }
  second.destroy();
  // After the last connection closes, none is counted.
  let hasAllRoom = false;
  for (const endMs = performance.now() + 5_000; !hasAllRoom;) {
    assert.ok(performance.now() < endMs, "when all are closed, not as many can be open again");
    const both = [open(server), open(server)];
    hasAllRoom = (await Promise.all(both.map(isServed))).every(Boolean);
    for (const socket of both) socket.destroy();
  }

  await using small = await start({ maxConnections: 2, maxConnectionsPerAddress: 10 });
  const taken = [open(small), open(small), open(small)];
  assert.deepEqual(await Promise.all(taken.map(isServed)), [true, true, false]);
  for (const socket of taken) socket.destroy();

  await using behind = await start({ trustedProxies: ["127.0.0.1"] });
  const proxied = Array.from({ length: 5 }, () => open(behind));
  assert.deepEqual(await Promise.all(proxied.map(isServed)), [true, true, true, true, true]);
  for (const socket of proxied) socket.destroy();
});

it("a refused upgrade's connection is closed, also when its client goes on sending and never hangs up", async () => {
  await using server = await startTestServer();
  const socket = connect({ port: Number(new URL(server.url).port), host: "127.0.0.1", allowHalfOpen: true });
  socket.on("error", () => undefined);
  socket.resume();
  socket.write(
    "GET /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n",
  );
  for (const endMs = performance.now() + 10_000; !socket.destroyed; await pause(50)) {
    assert.ok(performance.now() < endMs, "the connection is not closed");
    socket.write("more");
  }
});

it("a refused request's connection is closed when its body does not end", async () => {
  await using server = await startTestServer();
  const socket = connect({ port: Number(new URL(server.url).port), host: "127.0.0.1", allowHalfOpen: true });
  socket.on("error", () => undefined);
  socket.resume();
  socket.write("POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n");
  for (const endMs = performance.now() + 5_000; !socket.destroyed; await pause(50)) {
    assert.ok(performance.now() < endMs, "the connection is not closed");
    socket.write("more");
  }
});

it("the log of a refused request has the reason, and what its route logs the name of the plugin", async () => {
  const lines: string[] = [];
  const log = createLogger("debug", { write: (line) => void lines.push(line) });
  await using server = await startTestServer({ plugins: [[routes], [memoryBackend()]], log });
  await (await fetch(`${server.url}/body`, { method: "POST", body: "{" })).text();
  // Logged when the answer is closed, which the client may see before.
  while (!lines.some((line) => line.includes("request ended"))) await pause(5);
  const logged = lines.map((line) => JSON.parse(line) as { msg: string; requestId?: string });
  const ended = logged.find(({ msg }) => msg === "request ended");
  assert.partialDeepStrictEqual(ended, { status: 400, route: "/body", reason: "json_invalid" });
  const own = logged.find(({ msg }) => msg === "a body comes");
  assert.partialDeepStrictEqual(own, { plugin: "routes", requestId: ended?.requestId });
});

/** Sends a text to a server. @returns what comes back until the connection is closed. */
async function exchangeText(url: string, text: string): Promise<string> {
  const socket = connect(Number(new URL(url).port), "127.0.0.1");
  let received = "";
  socket.on("error", () => undefined).on("data", (bytes: Buffer) => (received += bytes.toString("latin1")));
  const closed = new Promise((resolve) => socket.once("close", resolve));
  socket.write(text);
  await closed;
  return received;
}

it("requests that wait for the answers before them are answered in order, and very many close the connection", async () => {
  await using server = await serve();
  const first = "POST /beginning HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx";
  const teapot = (option: string): string =>
    `GET /teapot HTTP/1.1\r\nHost: localhost\r\nConnection: ${option}\r\n\r\n`;
  const few = await exchangeText(server.url, first + teapot("keep-alive").repeat(30) + teapot("close"));
  assert.match(few, /^HTTP\/1\.1 200 OK\r\n/);
  assert.equal(few.split("HTTP/1.1 418 ").length - 1, 31);
  // Would never be closed otherwise.
  const unanswered = "GET /never HTTP/1.1\r\nHost: localhost\r\n\r\n";
  assert.equal(await exchangeText(server.url, unanswered + teapot("keep-alive").repeat(33)), "");
});

it("a body that is nearly nothing but the framing of its chunks is refused with 400", async () => {
  await using server = await serve();
  const head = "POST /unread HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
  const refused = await exchangeText(server.url, head + "1\r\nx\r\n".repeat(400_000));
  assert.match(refused, /^HTTP\/1\.1 400 Bad Request\r\nConnection: close\r\n\r\n$/);
});
