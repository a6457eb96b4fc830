import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer, request as httpRequest, type Server } from "node:http";
import { request as httpsRequest } from "node:https";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { after, before, beforeEach, describe, it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import type { LiveSandbox } from "../../sandbox/model/live-sandbox.js";
import { initTls } from "../../cli/tls.js";
import { definePlugin } from "../../plugin/plugin.js";
import { memoryBackend } from "../../testing/memory-backend.js";
import { startTestServer, type TestServer } from "../../testing/start-test-server.js";
import { eventually } from "../../testing/fake-clock.js";

const IDLE_MS = 2_000;
const MAX_EXCHANGES = 6;
const PORT = 8080;
const POSTED = "posted";
/** Number of requests that a program with the behaviour `serve together` collects before it answers them. */
const TOGETHER = 5;

/** A program on a port of a sandbox. It records its connections and requests. */
class Program {
  connections: Duplex[] = [];
  requests = 0;
  /** Delay before each answer, in milliseconds. */
  delayMs = 0;
  /** Answers that are held back until enough requests have arrived. */
  readonly #held: (() => void)[] = [];
  /** Behaviour of the next connections. */
  behaviour:
    | "serve"
    | "take and keep silent"
    | "serve together"
    | "hang up on the second request"
    | "hang up" = "serve";
  readonly #server: Server = createServer({ keepAliveTimeout: 60_000 }, (message, response) => {
    this.requests += 1;
    const chunks: Buffer[] = [];
    message.on("data", (chunk: Buffer) => chunks.push(chunk));
    message.on("end", () => {
      const { method, url, headers } = message;
      const seen = JSON.stringify({ method, url, headers, body: Buffer.concat(chunks).toString() });
      this.#held.push(() => response.end(seen));
      if (this.behaviour === "serve together" && this.#held.length < TOGETHER) return;
      for (const answer of this.#held.splice(0)) setTimeout(answer, this.delayMs);
    });
  });

  accept(connection: Duplex): void {
    this.connections.push(connection);
    connection.on("error", () => undefined);
    if (this.behaviour === "hang up") connection.destroy();
    else if (this.behaviour === "take and keep silent") connection.resume();
    else if (this.behaviour === "hang up on the second request") {
      let requests = 0;
      let text = "";
      connection.on("data", (data: Buffer) => {
        text += data.toString();
        const isWhole = text.endsWith(/^content-length:/im.test(text) ? POSTED : "\r\n\r\n");
        if (!isWhole) return;
        text = "";
        requests += 1;
        // Deferred: an answer during the write of the request would arrive before the request is sent.
        setImmediate(() => {
          if (requests === 1) connection.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
          else connection.destroy();
        });
      });
    } else this.#server.emit("connection", connection);
  }
}

interface Seen {
  readonly method: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

describe("the proxy to a sandbox's ports", { timeout: 240_000 }, () => {
  let program: Program;
  let server: TestServer;
  let sandbox: LiveSandbox;

  before(async () => {
    server = await startTestServer({
      plugins: [
        [memoryBackend({ ports: { [PORT]: (connection) => program.accept(connection) }, pausing: {} }), {}],
        [
          definePlugin({
            name: "code",
            setup: (plugin) => void plugin.http("code").get("/", () => undefined),
          }),
        ],
      ],
      server: {
        http: {
          proxyIdleTimeout: `${IDLE_MS}ms`,
          proxyIdleConnections: 2,
          proxyMaxExchanges: MAX_EXCHANGES,
        },
      },
    });
  });
  after(() => server.stop());
  beforeEach(async () => {
    program = new Program();
    sandbox = await create();
  });

  function create(wanted: Parameters<TestServer["sandboxes"]["create"]>[0] | object = {}) {
    return server.sandboxes.create({ template: "base", timeoutMs: undefined, secure: true, ...wanted });
  }

  async function ask(
    options: { method?: string; headers?: Record<string, string>; body?: string; to?: LiveSandbox } = {},
  ): Promise<{ readonly status: number; readonly type: string; readonly text: string; seen(): Seen }> {
    const { method = "GET", headers = {}, body, to = sandbox } = options;
    const outgoing = httpRequest(server.url, {
      method,
      headers: { "e2b-sandbox-id": to.record.id, "e2b-sandbox-port": String(PORT), ...headers },
      agent: false,
      // A request that is never answered fails its own test.
      signal: AbortSignal.timeout(8_000),
    });
    outgoing.end(body);
    const [incoming] = await once(outgoing, "response");
    let text = "";
    for await (const chunk of incoming) text += String(chunk);
    // The last byte arrives before the proxy returns the connection to its pool.
    await pause(5);
    const type = incoming.headers["content-type"];
    return { status: incoming.statusCode, type, text, seen: () => JSON.parse(text) as Seen };
  }

  /** Connections that requests got, by the metrics. */
  async function uses(): Promise<{ readonly kept: number; readonly opened: number }> {
    const text = await (await fetch(`${server.urls["ops"]}/metrics`)).text();
    const count = (how: string): number =>
      Number(new RegExp(`^coppice_proxy_connections_total\\{how="${how}"\\} (\\d+)$`, "m").exec(text)?.[1]);
    return { kept: count("kept"), opened: count("opened") };
  }

  it("keeps a connection for the next request, with and without a body", async () => {
    for (const body of ["", "some", "", "more"]) {
      const answer = await ask({ method: body === "" ? "GET" : "POST", body });
      assert.equal(answer.seen().body, body);
      assert.equal(answer.seen().headers["connection"], "keep-alive");
    }
    assert.equal(program.connections.length, 1);
    assert.equal(program.requests, 4);
    const before = await uses();
    for (let round = 0; round < 20; round += 1) await ask();
    assert.equal(program.connections.length, 1);
    const after = await uses();
    assert.deepEqual([after.kept - before.kept, after.opened - before.opened], [20, 0]);
  });

  it("keeps connections within their limits of number and time", async () => {
    program.behaviour = "serve together";
    await Promise.all(Array.from({ length: TOGETHER }, () => ask()));
    assert.equal(program.connections.length, TOGETHER);
    program.behaviour = "serve";
    const open = (): number => program.connections.filter(({ destroyed }) => !destroyed).length;
    await eventually("two wait", () => open() <= 2);
    assert.equal(open(), 2);
    await eventually("they wait for a time", () => open() === 0);
    assert.equal((await ask()).status, 200);
    assert.equal(program.connections.length, TOGETHER + 1);
  });

  it("lets a request on a kept connection take longer than that may wait for it", async () => {
    await ask();
    program.delayMs = IDLE_MS * 1.5;
    assert.equal((await ask({ method: "POST", body: "not sent twice" })).status, 200);
    assert.equal(program.connections.length, 1);
    // And it waits no longer after it.
    await eventually("it is closed", () => program.connections[0]?.destroyed);
  });

  it("drops kept connections when the sandbox ends, and gives none to another sandbox", async () => {
    const other = await create();
    await ask();
    await ask({ to: other });
    assert.equal(program.connections.length, 2);
    await server.sandboxes.kill(sandbox.record.id);
    await eventually("its own is closed", () => program.connections[0]?.destroyed);
    assert.deepEqual(
      program.connections.map(({ destroyed }) => destroyed),
      [true, false],
    );
    assert.equal((await ask()).status, 502);
    assert.equal((await ask({ to: other })).status, 200);
    assert.equal(program.connections.length, 2);
  });

  it("repeats a safe request on a new connection where the kept one is dead", async () => {
    program.behaviour = "hang up on the second request";
    assert.equal((await ask()).text, "ok");
    assert.equal((await ask()).text, "ok");
    assert.equal(program.connections.length, 2);
    const post = { method: "POST", body: POSTED };
    assert.equal((await ask(post)).text, "ok");
    assert.equal((await ask(post)).status, 502);
    assert.equal(program.connections.length, 3, "a POST is not sent twice");
    assert.equal((await ask()).text, "ok");
    assert.equal((await ask({ method: "DELETE" })).status, 502);
    assert.equal(program.connections.length, 4, "what changes something is not sent twice, body or not");
    assert.equal((await ask()).text, "ok");
    const headers = { "content-length": String(POSTED.length) };
    assert.equal((await ask({ body: POSTED, headers })).status, 502);
    assert.equal(program.connections.length, 5, "nor is a body, which was read");
  });

  it("does not keep a connection that the program closes or writes on", async () => {
    program.behaviour = "hang up on the second request";
    await ask();
    program.connections[0]?.end();
    await eventually("the first one is closed", () => program.connections[0]?.destroyed);
    await ask({ method: "POST", body: POSTED });
    assert.equal(program.connections.length, 2);
    program.connections[1]?.write("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged");
    await eventually("the second one is closed", () => program.connections[1]?.destroyed);
    assert.equal((await ask({ method: "POST", body: POSTED })).text, "ok", "it is not asked again");
    assert.equal(program.connections.length, 3);
    program.behaviour = "hang up";
    await eventually("no other is kept", () => program.connections.every(({ destroyed }) => destroyed));
    assert.equal((await ask()).status, 502);
  });

  it("shares no connection with a login", async () => {
    await ask({ headers: { authorization: "NTLM abc" } });
    await ask({ headers: { authorization: "Negotiate abc" } });
    await ask();
    assert.equal(program.connections.length, 3);
  });

  it("tells a program that its client came by TLS", async (context) => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-proxy-tls-"));
    context.after(() => rm(directory, { recursive: true }));
    await initTls("dev.localhost", directory);
    const tls = { cert: join(directory, "cert.pem"), key: join(directory, "key.pem") };
    await using secured = await startTestServer({
      plugins: [[memoryBackend({ ports: { [PORT]: (connection) => program.accept(connection) } }), {}]],
      server: { listeners: { api: { port: 0, tls } } },
    });
    const { record } = await secured.sandboxes.create({
      template: "base",
      timeoutMs: undefined,
      secure: false,
    });
    const outgoing = httpsRequest(secured.url.replace(/^http:/, "https:"), {
      headers: { "e2b-sandbox-id": record.id, "e2b-sandbox-port": String(PORT) },
      ca: await readFile(join(directory, "ca.pem")),
      servername: "dev.localhost",
      agent: false,
    });
    const [incoming] = await once(outgoing.end(), "response");
    const seen = JSON.parse((await Array.fromAsync(incoming)).join("")) as Seen;
    assert.equal(seen.headers["x-forwarded-proto"], "https");
  });

  it("requires the traffic token of a sandbox without public traffic, and does not pass it on", async () => {
    const closed = await create({ allowPublicTraffic: false });
    const token = closed.record.trafficAccessToken ?? "";
    assert.ok(token.length >= 32);
    const secured = "Sandbox is secured with traffic access token.";
    for (const [headers, text] of [
      [{}, `${secured} Token header 'e2b-traffic-access-token' is missing`],
      [
        { "e2b-traffic-access-token": "wrong" },
        `${secured} Provided token in header 'e2b-traffic-access-token' is invalid`,
      ],
    ] as const) {
      const refused = await ask({ to: closed, headers });
      assert.equal(refused.status, 403);
      assert.deepEqual(JSON.parse(refused.text), { sandboxId: closed.record.id, message: text, code: 403 });
      const upgrade = await ask({
        to: closed,
        headers: { ...headers, connection: "upgrade", upgrade: "websocket" },
      });
      assert.equal(upgrade.status, 403);
    }
    assert.equal(program.connections.length, 0);
    const secrets = { "E2B-Traffic-Access-Token": token, "X-API-Key": "e2b_1", "X-Access-Token": "e2b_2" };
    const passed = await ask({ to: closed, headers: secrets });
    assert.equal(passed.status, 200);
    for (const name of Object.keys(secrets))
      assert.equal(passed.seen().headers[name.toLowerCase()], undefined, name);
    const code = { "e2b-sandbox-port": "49999" };
    assert.equal((await ask({ to: closed, headers: code })).status, 403);
    const upgraded = { ...code, connection: "upgrade", upgrade: "websocket" };
    assert.equal((await ask({ to: closed, headers: upgraded })).status, 403);
    const envd = await ask({ to: closed, headers: { "e2b-sandbox-port": "49983" } });
    assert.notEqual(envd.status, 403);
    assert.equal((await ask()).status, 200, "others are open");
  });

  it("does not resume a paused sandbox without its traffic token", async () => {
    const closed = await create({ allowPublicTraffic: false, autoResume: true, onTimeout: "pause" });
    const { id, trafficAccessToken = "" } = closed.record;
    await server.sandboxes.pause(id);
    const upgrade = { connection: "upgrade", upgrade: "websocket" };
    for (const headers of [{}, upgrade]) {
      const wrong = { ...headers, "e2b-traffic-access-token": "wrong" };
      assert.equal((await ask({ to: closed, headers: wrong })).status, 403);
      assert.equal(server.sandboxes.get(id).record.state, "paused");
    }
    const headers = { "e2b-traffic-access-token": trafficAccessToken };
    assert.equal((await ask({ to: closed, headers })).status, 200);
    assert.equal(server.sandboxes.get(id).record.state, "running");
  });

  it("B.4-7: refuses exchanges beyond a sandbox's limit with 429, without affecting others", async () => {
    program.behaviour = "take and keep silent";
    const headers = { "e2b-sandbox-id": sandbox.record.id, "e2b-sandbox-port": String(PORT) };
    const silent = Array.from({ length: MAX_EXCHANGES }, (_, at) => {
      const ways = [{}, { connection: "upgrade", upgrade: "websocket" }, { authorization: "NTLM abc" }];
      const outgoing = httpRequest(server.url, {
        headers: { ...headers, ...ways[at % ways.length] },
        agent: false,
      });
      outgoing.on("error", () => undefined);
      outgoing.end();
      return outgoing;
    });
    await eventually("all are under way", () => program.connections.length >= MAX_EXCHANGES);
    const message = `The sandbox has too many concurrent incoming connections (limit: ${MAX_EXCHANGES})`;
    const refused = await ask();
    assert.equal(refused.status, 429);
    assert.deepEqual(JSON.parse(refused.text), { sandboxId: sandbox.record.id, message, code: 429 });
    assert.equal((await ask({ headers: { connection: "upgrade", upgrade: "websocket" } })).status, 429);
    assert.equal(program.connections.length, MAX_EXCHANGES);
    program.behaviour = "serve";
    assert.equal((await ask({ to: await create() })).status, 200);
    const taken = program.connections.slice(0, MAX_EXCHANGES);
    for (const outgoing of silent) outgoing.destroy();
    await eventually("no client that has left is asked for", () => taken.every(({ destroyed }) => destroyed));
    await eventually("there is room", async () => (await ask()).status === 200);
    // Exchanges that are still counted would use up the limit.
    for (let more = 0; more <= MAX_EXCHANGES; more += 1) assert.equal((await ask()).status, 200);
  });

  it("B.4-8: shows browsers a page, with the same status", async () => {
    const browser = {
      "user-agent": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    };
    const secret = await create({ allowPublicTraffic: false });
    const secretId = secret.record.id;
    for (const [options, status, texts] of [
      [{ headers: { "e2b-sandbox-id": "inever" } }, 502, ["Sandbox Not Found", "inever"]],
      [
        { headers: { "e2b-sandbox-port": "8081" } },
        502,
        ["no service running on port 8081", sandbox.record.id],
      ],
      [{ to: secret }, 403, ["Missing Traffic Access Token", secretId]],
      [
        { to: secret, headers: { "e2b-traffic-access-token": "wrong" } },
        403,
        ["Invalid Traffic Access Token", secretId],
      ],
    ] as const) {
      const headers = "headers" in options ? options.headers : {};
      const page = await ask({ ...options, headers: { ...headers, ...browser } });
      assert.equal(page.status, status);
      assert.equal(page.type, "text/html; charset=utf-8");
      assert.match(page.text, /^<html.*<\/html>$/s);
      for (const text of texts) assert.ok(page.text.includes(text), page.text);
      // Scripts of a page cannot change the name of their browser.
      for (const script of [
        { "sec-fetch-mode": "cors" },
        { accept: "application/json" },
        { "x-requested-with": "XMLHttpRequest" },
      ]) {
        const data = await ask({ ...options, headers: { ...headers, ...browser, ...script } });
        assert.equal(data.type, "application/json; charset=utf-8");
        assert.equal((JSON.parse(data.text) as { code: number }).code, status);
      }
    }
    assert.equal((await ask({ headers: browser })).status, 200);
  });

  it("shows programs the sandbox's configured Host, and the client's own in a header", async () => {
    const masked = await create({ maskRequestHost: "app.example:${PORT}" });
    const forged = { "x-forwarded-host": "forged.example", "x-forwarded-for": "192.0.2.1" };
    const asked = { host: "client.localhost:8000", ...forged };
    const { headers } = (await ask({ to: masked, headers: asked })).seen();
    assert.equal(headers["host"], `app.example:${PORT}`);
    assert.equal(headers["x-forwarded-host"], "client.localhost:8000");
    // The last hop is the last entry of the header.
    assert.match(headers["x-forwarded-for"] ?? "", /^192\.0\.2\.1, .*127\.0\.0\.1$/);
    const plain = (await ask({ headers: { host: "client.localhost:8000" } })).seen().headers;
    assert.equal(plain["host"], "client.localhost:8000");
  });
});
