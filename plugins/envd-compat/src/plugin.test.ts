import assert from "node:assert/strict";
import { request as httpRequest } from "node:http";
import { after, before, describe, it } from "node:test";
import {
  type CreateSandbox,
  CODE_PORT,
  definePlugin,
  ENVD_PORT,
  type LiveSandbox,
  targetOf,
} from "@coppice/core";
import {
  type FakeClock,
  fakeClock,
  memoryBackend,
  startTestServer,
  type TestServer,
} from "@coppice/core/testing";
import { parseSignedFileRequest, SignatureCheck } from "./file-signature.js";
import { plugin as envdCompat } from "./plugin.js";

const START = Date.UTC(2026, 0, 1);
const NO_TOKEN = "unauthorized access, please provide a valid access token or method signing if supported";

/** Stand-in for the plugins behind the guards: answers with the sandbox that was reached. */
const routes = definePlugin({
  name: "stand-in",
  setup(plugin) {
    const reached = (ctx: { state: object; body: unknown }): void => {
      ctx.body = targetOf(ctx).record.id;
    };
    const envd = plugin.http("envd", { errors: "e2b" });
    envd.get("/files", reached);
    envd.post("/files", reached);
    envd.post("/files/compose", reached);
    envd.post("/process.Process/List", reached);
    const code = plugin.http("code", { errors: "e2b" });
    code.post("/execute", reached);
    code.get("/contexts", reached);
    code.post("/contexts/:id/restart", reached);
  },
});

interface Call {
  readonly to?: LiveSandbox | undefined;
  readonly port?: number;
  readonly headers?: Record<string, string>;
  readonly body?: string;
}

async function call(url: string, route: string, { to, port = ENVD_PORT, headers, body }: Call = {}) {
  const [method = "", path = ""] = route.split(" ");
  const response = await fetch(url + path, {
    method,
    headers: {
      ...(to && { "E2b-Sandbox-Id": to.record.id, "E2b-Sandbox-Port": String(port) }),
      ...headers,
    },
    ...(body !== undefined && { body }),
  });
  const text = await response.text();
  return { status: response.status, headers: response.headers, text };
}

function refused(
  answer: { readonly status: number; readonly text: string },
  message: string,
  told: string,
): void {
  assert.equal(answer.status, 401, `${told}: ${answer.text}`);
  assert.deepEqual(JSON.parse(answer.text), { code: 401, message }, told);
}

/** The query of a signed URL, as the SDKs make it. */
function signedQuery(token: string, operation: "read" | "write", fields: Record<string, string>): string {
  const query = new URLSearchParams({ ...fields, signature: "to be made" });
  const url = new URL(`http://server/files?${query.toString()}`);
  const signed = parseSignedFileRequest(operation === "read" ? "GET" : "POST", url);
  assert.ok(signed);
  query.set("signature", new SignatureCheck(signed).expected(token));
  return query.toString();
}

describe("the envd of a sandbox", () => {
  let clock: FakeClock;
  let server: TestServer;
  let secure: LiveSandbox;
  let other: LiveSandbox;
  let open: LiveSandbox;
  let token: string;

  before(async () => {
    clock = fakeClock(START);
    server = await startTestServer({
      clock,
      plugins: [
        [memoryBackend({ pausing: {} }), {}],
        [envdCompat, {}],
        [routes, {}],
      ],
    });
    const wanted: CreateSandbox = {
      template: "base",
      timeoutMs: 3_600_000,
      secure: true,
      environment: { GREETING: "hello" },
    };
    secure = await server.sandboxes.create(wanted);
    other = await server.sandboxes.create(wanted);
    open = await server.sandboxes.create({ ...wanted, secure: false });
    token = secure.record.accessToken ?? "";
  });
  after(() => server.stop());

  it("is healthy as long as it lives, without authentication", async () => {
    const mortal = await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: true });
    const alive = await call(server.url, "GET /health", { to: mortal });
    assert.deepEqual([alive.status, alive.text], [204, ""]);
    await server.sandboxes.kill(mortal.record.id);
    for (const route of [
      "GET /health",
      "GET /files?path=x",
      "GET /envs",
      "POST /process.Process/List",
      "POST /init",
    ]) {
      const dead = await call(server.url, route, { to: mortal });
      assert.equal(dead.status, 502, route);
      assert.deepEqual(JSON.parse(dead.text), {
        sandboxId: mortal.record.id,
        message: "The sandbox was not found",
        code: 502,
      });
    }
  });

  it("requires its token everywhere else", async () => {
    const guarded = [
      "GET /envs",
      "GET /metrics",
      "POST /process.Process/List",
      "POST /files/compose",
      "POST /files/batch",
      "POST /files/download-url",
      "POST /files/download-token/a.1.b",
      "GET /files/download-token/a.1.b/c",
      "GET /nowhere",
    ];
    // Other spellings of open paths are not open.
    guarded.push(
      "POST /health",
      "GET /HEALTH",
      "GET /health/",
      "GET /FILES?path=x",
      "GET /files/?path=x",
      "DELETE /files",
    );
    for (const route of guarded) {
      refused(await call(server.url, route, { to: secure }), NO_TOKEN, route);
      for (const wrong of ["", "wrong", `${token}0`, other.record.accessToken ?? ""]) {
        const headers = { "X-Access-Token": wrong };
        refused(await call(server.url, route, { to: secure, headers }), NO_TOKEN, `${route} with ${wrong}`);
      }
      const headers = { "x-access-token": token };
      assert.notEqual((await call(server.url, route, { to: secure, headers })).status, 401, route);
      assert.notEqual(
        (await call(server.url, route, { to: open })).status,
        401,
        `${route} without a token set`,
      );
    }
  });

  it("is not resumed by refused requests", async () => {
    const { record } = await server.sandboxes.create({
      template: "base",
      timeoutMs: undefined,
      secure: true,
      autoResume: true,
      onTimeout: "pause",
    });
    await server.sandboxes.pause(record.id);
    const state = () => server.sandboxes.get(record.id).record.state;
    for (const headers of [{}, { "x-access-token": "wrong" }]) {
      refused(
        await call(server.url, "GET /envs", { to: server.sandboxes.get(record.id), headers }),
        NO_TOKEN,
        "GET /envs",
      );
      const probed = await call(server.url, "GET /health", { to: server.sandboxes.get(record.id), headers });
      assert.equal(probed.status, 403);
      const reserved = await call(server.url, "POST /init", { to: server.sandboxes.get(record.id), headers });
      assert.equal(reserved.status, 404);
      assert.equal(state(), "paused");
    }
    const headers = { "x-access-token": record.accessToken ?? "" };
    const to = server.sandboxes.get(record.id);
    assert.equal((await call(server.url, "GET /health", { to, headers })).status, 204);
    assert.equal(state(), "running");
    await server.sandboxes.pause(record.id);
    assert.equal(
      (await call(server.url, "GET /envs", { to: server.sandboxes.get(record.id), headers })).status,
      200,
    );
    assert.equal(state(), "running");
    await server.sandboxes.kill(record.id);
  });

  it("accepts a token or a signature for files, and reports which of them is wrong", async () => {
    const good = signedQuery(token, "read", { username: "user", path: "a b/ü+.txt" });
    const now = Math.floor(clock.now() / 1000);
    const lasting = signedQuery(token, "read", { path: "x", signature_expiration: String(now) });
    const expired = signedQuery(token, "read", { path: "x", signature_expiration: String(now - 1) });
    const headers = { "X-Access-Token": token };
    for (const [route, given] of [
      ["GET /files?path=x", headers],
      ["POST /files?path=x", headers],
      [`GET /files?${good}`, {}],
      [`GET /files?${lasting}`, {}],
      // Without a path the SDK signs an empty one.
      [`POST /files?${signedQuery(token, "write", { username: "user" })}`, {}],
      [`GET /files?${expired}`, headers],
    ] as const) {
      const answer = await call(server.url, route, { to: secure, headers: given });
      assert.deepEqual([answer.status, answer.text], [200, secure.record.id], route);
    }
    for (const [route, message] of [
      ["GET /files?path=x", "missing signature query parameter"],
      ["GET /files?path=x&signature=", "missing signature query parameter"],
      ["GET /files?path=x&signature=v1_wrong", "invalid signature"],
      [`POST /files?${good}`, "invalid signature"],
      [`GET /files?${good}&user=root`, "invalid signature"],
      [
        `GET /files?${signedQuery(other.record.accessToken ?? "", "read", { path: "x" })}`,
        "invalid signature",
      ],
      [`GET /files?${expired}`, "signature is already expired"],
    ] as const) {
      refused(await call(server.url, route, { to: secure }), message, route);
    }
    const wrong = await call(server.url, `GET /files?${good}`, {
      to: secure,
      headers: { "X-Access-Token": "wrong" },
    });
    refused(
      wrong,
      "access token present in header but does not match",
      "a wrong header beside a good signature",
    );
    const badTime = await call(server.url, "GET /files?signature=v1_x&signature_expiration=soon", {
      to: secure,
    });
    assert.equal(badTime.status, 400);
  });

  it("is found by a signed URL that names no sandbox", async () => {
    const reading = await call(server.url, `GET /files?${signedQuery(token, "read", { path: "x" })}`);
    assert.deepEqual([reading.status, reading.text], [200, secure.record.id]);
    const writing = signedQuery(other.record.accessToken ?? "", "write", {});
    const written = await call(server.url, `POST /files?${writing}`, { body: "content" });
    assert.deepEqual([written.status, written.text], [200, other.record.id]);
    const asked = { headers: { "access-control-request-method": "POST" } };
    assert.equal((await call(server.url, `OPTIONS /files?${writing}`, asked)).status, 204, "by a browser");
    refused(
      await call(server.url, "GET /files?path=x&signature=v1_wrong"),
      "invalid signature",
      "unknown signature",
    );
    const late = signedQuery(token, "read", { path: "x", signature_expiration: "1" });
    refused(
      await call(server.url, `GET /files?${late}`),
      "signature is already expired",
      "expired signature",
    );

    const mortal = await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: true });
    const query = signedQuery(mortal.record.accessToken ?? "", "read", { path: "x" });
    await server.sandboxes.kill(mortal.record.id);
    refused(
      await call(server.url, `GET /files?${query}`),
      "invalid signature",
      "signature of a dead sandbox",
    );
  });

  it("reports its variables and its usage, uncached", async () => {
    const headers = { "X-Access-Token": token };
    const envs = await call(server.url, "GET /envs", { to: secure, headers });
    assert.deepEqual(JSON.parse(envs.text), {
      E2B_SANDBOX: "true",
      E2B_SANDBOX_ID: secure.record.id,
      E2B_TEMPLATE_ID: "base",
      GREETING: "hello",
    });
    assert.equal(envs.headers.get("cache-control"), "no-store");
    const metrics = await call(server.url, "GET /metrics", { to: secure, headers });
    assert.deepEqual(JSON.parse(metrics.text), {
      ts: Math.floor(clock.now() / 1000),
      cpu_count: 1,
      cpu_used_pct: 0,
      mem_total: 512 * 2 ** 20,
      mem_used: 2 ** 20,
      mem_cache: 0,
      mem_total_mib: 512,
      mem_used_mib: 1,
      disk_used: 2 ** 20,
      disk_total: 1024 * 2 ** 20,
    });
  });

  it("refuses its control routes, with and without a token", async () => {
    for (const path of ["/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade"]) {
      for (const [to, headers] of [
        [secure, {}],
        [secure, { "X-Access-Token": token }],
        [open, {}],
      ] as const) {
        const answer = await call(server.url, `POST ${path}`, { to, headers, body: "{}" });
        assert.equal(answer.status, 404);
        assert.deepEqual(JSON.parse(answer.text), {
          message:
            "This endpoint is reserved for the E2B control plane and is not reachable through the sandbox URL",
          path,
          code: 404,
        });
      }
    }
  });

  it("runs code only with its token, which the SDKs do not present for contexts", async () => {
    const port = CODE_PORT;
    const headers = { "X-Access-Token": token };
    const wrong = { "X-Access-Token": "wrong" };
    for (const route of ["POST /execute", "POST /EXECUTE", "POST /execute/", "GET /api/kernels"]) {
      refused(await call(server.url, route, { to: secure, port }), NO_TOKEN, route);
      refused(await call(server.url, route, { to: secure, port, headers: wrong }), NO_TOKEN, route);
      assert.notEqual((await call(server.url, route, { to: secure, port, headers })).status, 401, route);
      assert.notEqual((await call(server.url, route, { to: open, port })).status, 401, route);
    }
    for (const route of ["GET /contexts", "POST /contexts/some-id/restart"]) {
      assert.equal((await call(server.url, route, { to: secure, port })).status, 200, route);
      assert.equal((await call(server.url, route, { to: secure, port, headers })).status, 200, route);
      refused(await call(server.url, route, { to: secure, port, headers: wrong }), NO_TOKEN, route);
    }
  });
});

describe("debug mode", () => {
  /** Uses `node:http`: fetch sets Host itself and does not send Origin. */
  async function browse(url: string, path: string, headers: Record<string, string>): Promise<number> {
    const { promise, resolve, reject } = Promise.withResolvers<number>();
    const outgoing = httpRequest(url + path, { headers, agent: false }, (message) => {
      message.resume();
      resolve(message.statusCode ?? 0);
    });
    outgoing.once("error", reject).end();
    return promise;
  }

  const debugServer = (memory = memoryBackend(), server: object = {}) =>
    startTestServer({
      plugins: [
        [memory, {}],
        [envdCompat, { debugSandbox: true }],
        [routes, {}],
      ],
      server: { ...server },
    });

  it("makes one sandbox for concurrent first requests, and keeps it", async () => {
    let made = 0;
    const memory = memoryBackend({
      async onProvision(step) {
        if (step !== "start") return;
        made += 1;
        await new Promise((resolve) => setTimeout(resolve, 30));
      },
    });
    await using server = await debugServer(memory);
    assert.equal(server.sandboxes.list().length, 0, "nothing is made before somebody asks");
    const { envd = "", code = "" } = server.urls;
    const answers = await Promise.all([
      ...Array.from({ length: 8 }, () => call(envd, "GET /files?path=x")),
      ...Array.from({ length: 8 }, () => call(code, "POST /execute")),
    ]);
    for (const { status, text } of answers) assert.deepEqual([status, text], [200, "debug"]);
    assert.equal(made, 1);
    const { record } = server.sandboxes.get("debug");
    assert.equal(record.accessToken, undefined);
    assert.equal(record.endsAtMs, undefined);
    assert.equal(record.template, "code-interpreter-v1");
    assert.equal((await call(envd, "GET /health")).status, 204);
  });

  it("makes another when it was killed, even while the old one is still going", async () => {
    const memory = memoryBackend({
      async onDestroy() {
        await new Promise((resolve) => setTimeout(resolve, 30));
      },
    });
    await using server = await debugServer(memory);
    const { envd = "" } = server.urls;
    await call(envd, "GET /health");
    const first = server.sandboxes.get("debug");
    const killed = server.sandboxes.kill("debug");
    assert.equal((await call(envd, "GET /health")).status, 204);
    await killed;
    assert.notEqual(server.sandboxes.get("debug"), first);
    assert.equal(memory.backend.alive.sandboxes, 1);
  });

  it("tries again after a creation that failed", async () => {
    let fails = true;
    const memory = memoryBackend({
      onProvision() {
        if (fails) throw new Error("no room");
      },
    });
    await using server = await debugServer(memory);
    const { envd = "" } = server.urls;
    assert.equal((await call(envd, "GET /health")).status, 500);
    fails = false;
    assert.equal((await call(envd, "GET /health")).status, 204);
  });

  it("is for clients of this machine, not for foreign web pages in a local browser", async () => {
    await using server = await debugServer();
    const { envd = "" } = server.urls;
    const { host, port } = new URL(envd);
    for (const headers of [
      { host: "page.example", origin: "http://page.example" },
      { host: `page.example:${port}` },
      { host, origin: "https://page.example" },
      { host, origin: "null" },
      { host, origin: "http://localhost.page.example" },
    ]) {
      assert.equal(await browse(envd, "/files?path=x", headers), 403, JSON.stringify(headers));
    }
    assert.equal(server.sandboxes.list().length, 0, "nothing was made for them");
    for (const headers of [{ host }, { host: `localhost:${port}`, origin: "http://localhost:5173" }]) {
      assert.equal(await browse(envd, "/files?path=x", headers), 200, JSON.stringify(headers));
    }
    // The debug sandbox exists now. Its well-known id leads to it from every listener, with the same checks.
    const addressed = { "e2b-sandbox-id": "debug", "e2b-sandbox-port": "49983" };
    for (const url of [envd, server.url]) {
      const foreign = { host, origin: "https://page.example", ...addressed };
      assert.equal(await browse(url, "/files?path=x", foreign), 403);
      assert.equal(await browse(url, "/files?path=x", { host: "page.example", ...addressed }), 403);
      assert.equal(await browse(url, "/files?path=x", { host, ...addressed }), 200);
    }
    // Pages of programs in sandboxes are refused too, also in the debug sandbox, and so are cross-site image requests.
    const picture = { "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors" };
    for (const foreign of [
      { origin: "http://3000-debug.localhost" },
      { origin: "http://3000-iother.localhost" },
      picture,
    ])
      for (const port of ["49983", "8080"])
        assert.equal(
          await browse(server.url, "/files?path=x", {
            host,
            ...addressed,
            "e2b-sandbox-port": port,
            ...foreign,
          }),
          403,
          JSON.stringify(foreign),
        );
    // No program listens on that port: an admitted request gets the edge's answer.
    assert.equal(await browse(server.url, "/", { host, ...addressed, "e2b-sandbox-port": "8080" }), 502);
  });

  it("is for no other machine, whatever that calls itself", async () => {
    await using server = await debugServer(memoryBackend(), { http: { trustedProxies: ["127.0.0.1"] } });
    assert.equal(await browse(server.urls["envd"] ?? "", "/files?path=x", { host: "localhost" }), 200);
    const addressed = { "host": "localhost", "e2b-sandbox-id": "debug", "e2b-sandbox-port": "49983" };
    for (const [address, status] of [
      ["198.51.100.7", 403],
      ["2001:db8::7", 403],
      ["127.0.0.1", 200],
    ] as const) {
      const headers = { ...addressed, "x-forwarded-for": address };
      assert.equal(await browse(server.url, "/files?path=x", headers), status, address);
    }
  });

  it("is absent unless it is switched on and the listener is on loopback", async () => {
    await using off = await startTestServer({
      plugins: [
        [memoryBackend(), {}],
        [envdCompat, {}],
      ],
    });
    assert.equal((await call(off.urls["envd"] ?? "", "GET /health")).status, 400);

    await using reachable = await debugServer(memoryBackend(), {
      listeners: {
        api: { host: "127.0.0.1", port: 0 },
        envd: { host: "0.0.0.0", port: 0, insecure: true },
      },
    });
    assert.equal((await call(reachable.urls["envd"] ?? "", "GET /health")).status, 400);
    assert.equal(reachable.sandboxes.list().length, 0);
  });
});
