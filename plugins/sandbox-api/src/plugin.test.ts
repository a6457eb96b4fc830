import assert from "node:assert/strict";
import { once } from "node:events";
import { connect } from "node:net";
import { after, before, describe, it } from "node:test";
import {
  type FakeClock,
  fakeClock,
  memoryBackend,
  startTestServer,
  type TestServer,
} from "@coppice/core/testing";
import { plugin as sandboxApi } from "./plugin.js";
import { type Answer, call } from "./testing/call.js";

const START = Date.UTC(2026, 0, 1);

describe("the E2B control plane", () => {
  const memory = memoryBackend({ resizing: {} });
  let clock: FakeClock;
  let server: TestServer;

  before(async () => {
    clock = fakeClock(START);
    server = await startTestServer({
      clock,
      plugins: [
        [memory, {}],
        [sandboxApi, { domain: "sandboxes.example:8443", maxBody: "4KiB" }],
      ],
      server: {
        sandboxes: {
          maximumLimits: { cpuCount: 8, memoryMiB: 1024, diskMiB: 4096 },
          templates: { "base": { limits: { cpuCount: 2 } }, "code-interpreter-v1": {} },
        },
      },
    });
  });
  after(() => server.stop());

  async function create(body: object = {}, route = "POST /v2/sandboxes") {
    const { status, json } = await call(server, route, { body: { templateID: "base", ...body } });
    assert.equal(status, 201, JSON.stringify(json));
    return json;
  }

  it("answers a creation as the SDKs need it", async () => {
    const { status, json } = await call(server, "POST /v2/sandboxes", { body: { templateID: "base" } });
    assert.equal(status, 201);
    const { sandboxID, envdAccessToken, ...rest } = json;
    assert.match(sandboxID, /^[a-z0-9]+$/);
    assert.ok(envdAccessToken !== undefined && envdAccessToken.length >= 32);
    assert.deepEqual(rest, {
      templateID: "base",
      alias: "base",
      clientID: "coppice",
      envdVersion: "0.6.13",
      trafficAccessToken: null,
      domain: "sandboxes.example:8443",
    });
    await server.sandboxes.kill(sandboxID);
  });

  it("keeps the defaults of each generation of the API", async () => {
    const older = await create({}, "POST /sandboxes");
    const olderSecure = await create({ secure: true, timeout: 60 }, "POST /sandboxes");
    const newer = await create();
    assert.ok(older.envdAccessToken);
    assert.ok(olderSecure.envdAccessToken);
    assert.ok(newer.envdAccessToken);
    const lifeOf = ({ sandboxID }: { sandboxID: string }) =>
      (server.sandboxes.get(sandboxID).record.endsAtMs ?? 0) - clock.now();
    assert.deepEqual([older, olderSecure, newer].map(lifeOf), [15_000, 60_000, 300_000]);
    for (const { sandboxID } of [older, olderSecure, newer]) await server.sandboxes.kill(sandboxID);
  });

  it("makes a sandbox that requires its token unless the creator says otherwise, or is a silent SDK", async () => {
    const isSecure = async (of: TestServer, body: object, headers: Record<string, string> = {}) => {
      const { status, json } = await call(of, "POST /sandboxes", {
        headers,
        body: { templateID: "base", ...body },
      });
      assert.equal(status, 201, JSON.stringify(json));
      await of.sandboxes.kill(json.sandboxID);
      return json.envdAccessToken !== undefined;
    };
    const sdk = { publisher: "e2b", lang: "python", package_version: "1.0.3" };
    for (const [secureByDefault, expected] of [
      [undefined, [true, false, true, true, false, false]],
      ["always", [true, true, true, true, false, false]],
      ["never", [false, false, true, true, false, false]],
    ] as const) {
      await using other = await startTestServer({
        plugins: [
          [memoryBackend({}), {}],
          [sandboxApi, secureByDefault === undefined ? {} : { secureByDefault }],
        ],
      });
      const found: boolean[] = [];
      for (const body of [{}, { secure: true }, { secure: false }])
        for (const headers of [{}, sdk]) found.push(await isSecure(other, body, headers));
      assert.deepEqual(found, expected, secureByDefault);
    }
  });

  it("returns a sandbox's creation options, by its id or its long form", async () => {
    const { sandboxID, envdAccessToken } = await create({
      metadata: { user: "abc" },
      envVars: { SECRET: "x" },
      timeout: 60,
      allow_internet_access: false,
    });
    const expected = {
      templateID: "base",
      alias: "base",
      sandboxID,
      clientID: "coppice",
      startedAt: new Date(clock.now()).toISOString(),
      endAt: new Date(clock.now() + 60_000).toISOString(),
      cpuCount: 2,
      memoryMB: 512,
      diskSizeMB: 1024,
      state: "running",
      envdVersion: "0.6.13",
      metadata: { user: "abc" },
      volumeMounts: [],
    };
    const detail = {
      ...expected,
      envdAccessToken,
      domain: "sandboxes.example:8443",
      allowInternetAccess: false,
      network: { allowPublicTraffic: true },
      lifecycle: { autoResume: false, onTimeout: "kill" },
    };
    assert.deepEqual((await call(server, `GET /sandboxes/${sandboxID}`)).json, detail);
    assert.deepEqual((await call(server, `GET /sandboxes/${sandboxID}-coppice`)).json, detail);
    assert.deepEqual((await call(server, "GET /v2/sandboxes")).json, [expected]);
    assert.deepEqual((await call(server, "GET /sandboxes")).json, [expected]);
    assert.deepEqual(server.sandboxes.get(sandboxID).record.environment, { SECRET: "x" });
    await server.sandboxes.kill(sandboxID);
  });

  it("returns the network rules of a sandbox, and replaces all of them at once", async () => {
    const network = { allowOut: ["8.8.8.8", "2001:db8::/32"], denyOut: ["0.0.0.0/0"] };
    const { sandboxID } = await create({ network: { ...network, maskRequestHost: "localhost" } });
    const update = `PUT /sandboxes/${sandboxID}/network`;
    const told = async () => {
      const { json } = await call<{ network: object; allowInternetAccess: boolean }>(
        server,
        `GET /sandboxes/${sandboxID}`,
      );
      return [json.allowInternetAccess, json.network, memory.backend.sandboxes.get(sandboxID)?.egress];
    };
    const fixed = { allowPublicTraffic: true, maskRequestHost: "localhost" };
    assert.deepEqual(await told(), [true, { ...fixed, ...network }, network]);
    for (const [body, allowed, rules, held] of [
      [{ denyOut: ["1.1.1.1"] }, true, { allowOut: [], denyOut: ["1.1.1.1"] }, undefined],
      [{ allow_internet_access: false }, false, undefined, { allowOut: [], denyOut: ["0.0.0.0/0"] }],
      [{}, true, undefined, { allowOut: [], denyOut: [] }],
    ] as const) {
      const answer = await call(server, update, { body });
      assert.deepEqual([answer.status, answer.text], [204, ""]);
      assert.deepEqual(await told(), [allowed, { ...fixed, ...rules }, held ?? rules]);
    }
    await server.sandboxes.kill(sandboxID);
    assert.equal((await call(server, update, { body: {} })).status, 404);
  });

  it("reports no internet access where the backend has none, though its creator asks for it", async () => {
    const plugins = [sandboxApi, memoryBackend({ offline: true })].map((plugin) => [plugin, {}] as const);
    await using offline = await startTestServer({ plugins });
    const { json } = await call(offline, "POST /sandboxes", {
      body: { templateID: "base", allow_internet_access: true },
    });
    const told = await call<{ allowInternetAccess: boolean }>(offline, `GET /sandboxes/${json.sandboxID}`);
    assert.equal(told.json.allowInternetAccess, false);
  });

  it("gives a sandbox the limits that its creator chose, and changes them while it runs", async () => {
    const { sandboxID } = await create({ cpuCount: 4, memory_mb: 256, diskSizeMB: 0 });
    const patch = (body: object) => call<object>(server, `PATCH /sandboxes/${sandboxID}/limits`, { body });
    const told = async () => {
      const { json } = await call<Record<string, unknown>>(server, `GET /sandboxes/${sandboxID}`);
      return [json["cpuCount"], json["memoryMB"], json["diskSizeMB"]];
    };
    assert.deepEqual(await told(), [4, 256, 1024]);
    const changed = await patch({ cpuCount: 1.5, memoryMB: 384, writable_layer_mb: 512 });
    assert.equal(changed.status, 200);
    assert.deepEqual(changed.json, { sandboxID, cpuCount: 1.5, memoryMB: 384, diskSizeMB: 512 });
    assert.deepEqual((await patch({ cpu_count: 0, diskSizeMB: 0 })).json, {
      sandboxID,
      cpuCount: 2,
      memoryMB: 384,
      diskSizeMB: 1024,
    });
    assert.deepEqual(await told(), [2, 384, 1024]);
    const refused = await call(server, `PATCH /sandboxes/${sandboxID}/limits`, { body: { cpuCount: 150 } });
    assert.equal(refused.status, 400);
    // The number is of CPUs. The original took it for percent of one.
    assert.match(
      refused.json.message,
      /^150 CPUs are more than a sandbox of template 'base' may have \(8\): see sandboxes\.maximumLimits\.\w+$/,
    );
    await server.sandboxes.kill(sandboxID);
    assert.equal((await patch({ cpuCount: 1 })).status, 404);
  });

  it("connects to a running sandbox and only extends its time", async () => {
    const { sandboxID, envdAccessToken } = await create({ timeout: 600 });
    const lifeMs = () => (server.sandboxes.get(sandboxID).record.endsAtMs ?? 0) - clock.now();
    const { status, json } = await call(server, `POST /v2/sandboxes/${sandboxID}/connect`, { body: {} });
    assert.equal(status, 200);
    assert.equal(json.sandboxID, sandboxID);
    assert.equal(json.envdAccessToken, envdAccessToken);
    assert.equal(lifeMs(), 600_000);
    // The JavaScript SDK may send no body at all.
    assert.equal((await call(server, `POST /v2/sandboxes/${sandboxID}/connect`)).status, 200);
    await call(server, `POST /sandboxes/${sandboxID}/connect`, { body: { timeout: 900 } });
    assert.equal(lifeMs(), 900_000);
    const unnamed = await call(server, `POST /sandboxes/${sandboxID}/connect`, { body: {} });
    assert.equal(unnamed.status, 400);
    assert.match(unnamed.json.message, /^validation error: timeout/);
    await server.sandboxes.kill(sandboxID);
  });

  it("moves the end of a sandbox in both directions, and ends it when no time is left", async () => {
    const { sandboxID } = await create({ timeout: 600 });
    const lifeMs = () => (server.sandboxes.get(sandboxID).record.endsAtMs ?? 0) - clock.now();
    const set = (timeout: unknown) =>
      call(server, `POST /sandboxes/${sandboxID}/timeout`, { body: { timeout } });
    assert.equal((await set(10)).status, 204);
    assert.equal(lifeMs(), 10_000);
    assert.equal((await call(server, `POST /sandboxes/${sandboxID}/refreshes`)).status, 204);
    assert.equal(lifeMs(), 15_000);
    await call(server, `POST /sandboxes/${sandboxID}/refreshes`, { body: { duration: 60 } });
    assert.equal(lifeMs(), 60_000);
    await call(server, `POST /sandboxes/${sandboxID}/refreshes`, { body: { duration: 1 } });
    assert.equal(lifeMs(), 60_000);
    assert.deepEqual((await set(25 * 3600)).json, { code: 400, message: "Max instance length exceeded" });
    assert.equal((await set(-1)).status, 204);
    assert.equal((await call(server, `GET /sandboxes/${sandboxID}`)).status, 404);
    assert.equal(memory.backend.alive.sandboxes, 0);
  });

  it("kills once and does not know the sandbox afterwards, in words that every client understands", async () => {
    const { sandboxID } = await create();
    const killed = await call(server, `DELETE /sandboxes/${sandboxID}`);
    assert.deepEqual([killed.status, killed.text], [204, ""]);
    const again = await call(server, `DELETE /sandboxes/${sandboxID}`);
    assert.equal(again.status, 404);
    assert.equal(again.json.code, 404);
    assert.ok(again.json.message.startsWith(`Sandbox "${sandboxID}" doesn't exist`));
    assert.match(again.json.message, /sandbox not found/i);
  });

  it("pages a list with the headers that the SDKs follow", async () => {
    const made: string[] = [];
    for (let index = 0; index < 3; index += 1) {
      made.unshift((await create({ metadata: { "k &": "v=" } })).sandboxID);
      await clock.advance(1);
    }
    const query = "metadata=k%252520%252526%3Dv%25253D&limit=2";
    const first = await call<Answer[]>(server, `GET /v2/sandboxes?${query}`);
    assert.equal(first.headers.get("x-total-running"), "3");
    const nextToken = first.headers.get("x-next-token");
    const second = await call<Answer[]>(server, `GET /v2/sandboxes?${query}&nextToken=${nextToken}`);
    assert.equal(second.headers.get("x-next-token"), null);
    const seen = [...first.json, ...second.json].map(({ sandboxID }) => sandboxID);
    assert.deepEqual(seen, made);
    for (const id of made) await server.sandboxes.kill(id);
  });

  it("samples what a sandbox uses now, where the window asked for reaches to now", async () => {
    const { sandboxID } = await create();
    const path = `GET /sandboxes/${sandboxID}/metrics`;
    const now = Math.floor(clock.now() / 1000);
    const expected = {
      timestamp: new Date(clock.now()).toISOString(),
      timestampUnix: now,
      cpuCount: 2,
      cpuUsedPct: 0,
      memUsed: 2 ** 20,
      memTotal: 512 * 2 ** 20,
      memCache: 0,
      diskUsed: 2 ** 20,
      diskTotal: 1024 * 2 ** 20,
    };
    assert.deepEqual((await call(server, path)).json, [expected]);
    assert.deepEqual((await call(server, `${path}?start=${now - 60}&end=${now}`)).json, [expected]);
    assert.deepEqual((await call(server, `${path}?end=${now - 60}`)).json, []);
    assert.equal((await call(server, `${path}?start=yesterday`)).status, 400);
    assert.equal((await call(server, `${path}?start=2&end=1`)).status, 400);
    await server.sandboxes.kill(sandboxID);
  });

  it("answers its health check", async () => {
    const health = await call(server, "GET /health");
    assert.deepEqual([health.status, health.text], [200, "Health check successful"]);
    assert.match(health.headers.get("content-type") ?? "", /^text\/plain/);
  });

  it("answers invalid requests with the reason, and goes on serving", async () => {
    const { sandboxID } = await create();
    const onSandbox = ["connect", "timeout", "refreshes"].map(
      (verb) => `POST /sandboxes/${sandboxID}/${verb}`,
    );
    const bodied = [
      "POST /sandboxes",
      "POST /v2/sandboxes",
      `POST /v2/sandboxes/${sandboxID}/connect`,
      ...onSandbox,
    ];
    const bad: [string, unknown, number, RegExp][] = [];
    for (const route of bodied) {
      bad.push(
        [route, "{", 400, /^Error when parsing request: /],
        [route, "\u0000\ufffd", 400, /^Error when parsing request: /],
        [route, "[1]", 400, /^validation error: /],
        [route, "null", 400, /^validation error: /],
        [route, '"text"', 400, /^validation error: /],
        [
          route,
          JSON.stringify({ templateID: "base", metadata: { long: "x".repeat(5000) } }),
          413,
          /larger than 4096 bytes/,
        ],
      );
    }
    for (const route of ["POST /sandboxes", "POST /v2/sandboxes"]) {
      bad.push(
        [route, "", 400, /^Error when parsing request: /],
        [route, {}, 400, /^validation error: templateID/],
        [route, { templateID: 7 }, 400, /^validation error: templateID/],
        [route, { templateID: "a b" }, 400, /^Invalid template reference: /],
        [route, { templateID: "nope" }, 404, /^template 'nope' not found$/],
        [route, { templateID: "base:v1" }, 404, /^tag 'v1' does not exist for template 'base'$/],
        [route, { templateID: "base", timeout: "60" }, 400, /^validation error: timeout/],
        [route, { templateID: "base", timeout: 1.5 }, 400, /^validation error: timeout/],
        [route, { templateID: "base", timeout: 1e300 }, 400, /^validation error: timeout/],
        [route, { templateID: "base", timeout: 0 }, 400, /^Timeout must be greater than 0$/],
        [route, { templateID: "base", timeout: 86_401 }, 400, /^Timeout cannot be greater than 24 hours$/],
        [route, { templateID: "base", metadata: { a: 1 } }, 400, /^validation error: metadata.a/],
        [route, { templateID: "base", metadata: [] }, 400, /^validation error: metadata/],
        [route, { templateID: "base", envVars: { "A=B": "x" } }, 400, /^validation error: envVars/],
        [route, { templateID: "base", autoPause: true }, 400, /does not support pausing/],
        [route, { templateID: "base", autoResume: true }, 400, /^autoResume only applies/],
        [route, { templateID: "base", network: "none" }, 400, /^validation error: network/],
        [route, { templateID: "base", memoryMB: 1 }, 400, /^validation error: memoryMB: .*at least 128$/],
        [route, { templateID: "base", cpuCount: 9 }, 400, /^9 CPUs are more than/],
      );
    }
    for (const [network, message] of [
      [{ denyOut: ["example.com"] }, /^network.denyOut: 'example.com' is no IP address and no CIDR range$/],
      [{ allowOut: ["1.2.3"] }, /^network.allowOut: '1.2.3' is no IP address/],
      [{ allowOut: ["example.com"] }, /^network.allowOut: the domain 'example.com' needs '0.0.0.0\/0'/],
      [{ allowOut: "1.1.1.1" }, /^validation error: (network.)?allowOut/],
      [{ denyOut: Array.from({ length: 501 }, () => "1") }, /^validation error: (network.)?denyOut: .*<=500/],
      [{ httpsPorts: [3000] }, /does not support network.httpsPorts$/],
      [{ egressProxy: { address: "a:1" } }, /does not support network.egressProxy$/],
      [{ rules: { "a.b": [{ transform: { headers: { A: "b" } } }] } }, /does not support network.rules/],
    ] as const) {
      bad.push(
        ["POST /sandboxes", { templateID: "base", network }, 400, message],
        ["POST /v2/sandboxes", { templateID: "base", network }, 400, message],
        [`PUT /sandboxes/${sandboxID}/network`, network, 400, message],
      );
    }
    bad.push(
      [`PUT /sandboxes/${sandboxID}/network`, "", 400, /^Error when parsing request: /],
      [`PUT /sandboxes/${sandboxID}/network`, [], 400, /^validation error: /],
      [
        `PUT /sandboxes/${sandboxID}/network`,
        { allow_internet_access: 1 },
        400,
        /^validation error: allow_int/,
      ],
      [
        `PUT /sandboxes/${sandboxID}/network`,
        { allowPublicTraffic: true },
        400,
        /set when a sandbox is created$/,
      ],
      [`PATCH /sandboxes/${sandboxID}/limits`, "", 400, /^Error when parsing request: /],
      [`PATCH /sandboxes/${sandboxID}/limits`, {}, 400, /^validation error: expected cpuCount/],
      [`PATCH /sandboxes/${sandboxID}/limits`, { cpuCount: "2" }, 400, /^validation error: cpuCount/],
      [`POST /sandboxes/${sandboxID}/timeout`, "", 400, /^Error when parsing request: /],
      [`POST /sandboxes/${sandboxID}/timeout`, {}, 400, /^validation error: timeout/],
      [`POST /sandboxes/${sandboxID}/timeout`, { timeout: null }, 400, /^validation error: timeout/],
      [`POST /sandboxes/${sandboxID}/refreshes`, { duration: 3601 }, 400, /^validation error: duration/],
      [
        `POST /sandboxes/${sandboxID}/connect`,
        { timeout: 86_401 },
        400,
        /^Timeout cannot be greater than 24 hours$/,
      ],
      [
        "POST /sandboxes/unknown/connect",
        { timeout: 259_200 },
        400,
        /^Timeout cannot be greater than 24 hours$/,
      ],
      ["GET /v2/sandboxes?limit=1000", undefined, 400, /^validation error: limit/],
      ["GET /v2/sandboxes?metadata=%2525zz", undefined, 400, /^validation error: metadata/],
      ["GET /sandboxes?metadata=%25", undefined, 400, /^validation error: metadata/],
      ["GET /v2/sandboxes?nextToken=%00", undefined, 400, /^Invalid next token$/],
      ["PUT /sandboxes", undefined, 405, /./],
      ["GET /nowhere", undefined, 404, /./],
    );
    for (const [id, status, message] of [
      ["unknown", 404, /sandbox not found/],
      ["UPPER", 400, /^Invalid sandbox ID$/],
      ["-x", 400, /^Invalid sandbox ID$/],
      ["%00", 400, /^Invalid sandbox ID$/],
      ["%zz", 400, /^Invalid sandbox ID$/],
      ["..%2F..%2Fetc", 400, /^Invalid sandbox ID$/],
      ["a".repeat(4000), 404, /sandbox not found/],
    ] as const) {
      bad.push(
        [`GET /sandboxes/${id}`, undefined, status, message],
        [`DELETE /sandboxes/${id}`, undefined, status, message],
        [`GET /sandboxes/${id}/metrics`, undefined, status, message],
        [`POST /sandboxes/${id}/timeout`, { timeout: 1 }, status, message],
        [`POST /sandboxes/${id}/refreshes`, { duration: 1 }, status, message],
        [`PUT /sandboxes/${id}/network`, {}, status, message],
        [`PATCH /sandboxes/${id}/limits`, { cpuCount: 1 }, status, message],
        [`POST /sandboxes/${id}/connect`, { timeout: 1 }, status, message],
        [`POST /v2/sandboxes/${id}/connect`, {}, status, message],
      );
    }
    for (const [route, body, status, message] of bad) {
      const told = `${route.slice(0, 80)} ${JSON.stringify(body)?.slice(0, 80)}`;
      const answer = await call(server, route, { body });
      assert.equal(answer.status, status, `${told}: ${answer.text.slice(0, 200)}`);
      assert.equal(answer.json.code, status, `${told}: the SDKs read the code in the body`);
      assert.match(answer.json.message, message, told);
    }
    assert.equal((await call(server, `GET /sandboxes/${sandboxID}`)).status, 200);
    await server.sandboxes.kill(sandboxID);
    assert.equal(memory.backend.alive.sandboxes, 0, "a refused create leaves nothing");
  });

  it("refuses a body that never ends as soon as it is too long", async () => {
    const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
    socket.on("error", () => {});
    let answer = "";
    socket.on("data", (chunk: Buffer) => {
      answer += chunk.toString();
    });
    socket.write("POST /v2/sandboxes HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n");
    for (let sent = 0; sent < 8; sent += 1) socket.write(`400\r\n${"x".repeat(1024)}\r\n`);
    await once(socket, "close");
    assert.match(answer, /^HTTP\/1.1 413 /);
  });
});

describe("a server without authentication", () => {
  it("serves all clients on loopback", async () => {
    await using server = await startTestServer({
      plugins: [
        [memoryBackend(), {}],
        [sandboxApi, {}],
      ],
    });
    assert.equal((await fetch(`${server.url}/sandboxes`)).status, 200);
    const made = await fetch(`${server.url}/v2/sandboxes`, { method: "POST", body: '{"templateID":"base"}' });
    assert.equal(((await made.json()) as { domain: unknown }).domain, null);
  });

  it("does not start where others can reach it", async () => {
    await assert.rejects(
      startTestServer({
        plugins: [
          [memoryBackend(), {}],
          [sandboxApi, {}],
        ],
        server: { listeners: { api: { host: "0.0.0.0", port: 0 } } },
      }),
      /api/,
    );
  });
});
