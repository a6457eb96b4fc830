import assert from "node:assert/strict";
import { Agent } from "node:http";
import { connect } from "node:net";
import { after, before, describe, it } from "node:test";
import { Sandbox } from "@e2b/code-interpreter";
import type { TestServer } from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { packFrame, unpackFrames } from "../../harness/clients/connect-frames.js";
import { type Answer, exchange } from "../../harness/clients/exchange.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { rawExchange } from "../../harness/clients/raw-exchange.js";
import { startFullServer } from "../../harness/server/start-full-server.js";
import { API_BODIES, CODE_BODIES, NDJSON_BODIES, STREAMS, UNARY, UNREADABLE } from "./bad-bodies.js";

const UNKNOWN_ID = "iabcdefghij0123456789";
const LIMIT = "64KiB";
const HUGE = 256 * 1024;

describe("bad input", { timeout: 240_000 }, () => {
  let server: TestServer;
  let sandbox: Sandbox;
  let token: string;

  before(async () => {
    server = await startFullServer({
      server: { http: { messageLimit: LIMIT, drainTimeout: "200ms", headersTimeout: "2s" } },
      settings: { "sandbox-api": { maxBody: LIMIT } },
    });
    pointSdkAt(server.url);
    sandbox = await Sandbox.create();
    await sandbox.files.write("plain.txt", "no directory");
    token = server.sandboxes.get(sandbox.sandboxId).record.accessToken ?? "";
  });
  after(() => server.stop());

  const api = (method: string, path: string, body?: string | Uint8Array, key = API_KEY): Promise<Answer> =>
    exchange(server.url, {
      method,
      path: path.replace("ID", sandbox.sandboxId),
      headers: { "x-api-key": key, "content-type": "application/json" },
      ...(body !== undefined && { body }),
    });

  const inside = (
    port: number,
    method: string,
    path: string,
    options: {
      readonly body?: string | Uint8Array;
      readonly headers?: Readonly<Record<string, string>>;
      readonly id?: string;
      readonly agent?: Agent;
    } = {},
  ): Promise<Answer> =>
    exchange(server.url, {
      method,
      path,
      headers: {
        "e2b-sandbox-id": options.id ?? sandbox.sandboxId,
        "e2b-sandbox-port": String(port),
        "x-access-token": token,
        "content-type": "application/json",
        ...options.headers,
      },
      ...(options.body !== undefined && { body: options.body }),
      ...(options.agent !== undefined && { agent: options.agent }),
    });
  const envd = inside.bind(undefined, 49983);
  const code = inside.bind(undefined, 49999);
  const stream = (path: string, body: Uint8Array) =>
    envd("POST", path, {
      body,
      headers: { "content-type": "application/connect+json", "connect-protocol-version": "1" },
    });

  describe("on the control plane", () => {
    it("is refused in the words of the contract when it is no JSON", async () => {
      for (const { path } of API_BODIES) {
        for (const [what, body] of UNREADABLE)
          assertRefusal(await api("POST", path, body), 400, `${path}: ${what}`);
      }
      assert.match(message(await api("POST", "/v2/sandboxes", "{")), /^Error when parsing request: /);
    });

    it("is refused with what is wrong when it has the wrong shape", async () => {
      for (const { path, wrong } of API_BODIES) {
        for (const body of wrong) {
          const answer = await api("POST", path, JSON.stringify(body));
          assertRefusal(answer, 400, `${path}: ${JSON.stringify(body)}`);
        }
      }
      assert.match(message(await api("POST", "/v2/sandboxes", "{}")), /^validation error: templateID: /);
      assert.equal(server.sandboxes.list().length, 1, "nothing was created on the way");
    });

    it("is refused when it is larger than the server reads", async () => {
      const body = JSON.stringify({ templateID: "base", metadata: { a: "x".repeat(HUGE) } });
      for (const { path } of API_BODIES) assertRefusal(await api("POST", path, body), 413, path);
    });

    it("meets the same answer whatever is wrong with an id", async () => {
      const routes: readonly (readonly [string, string, string?])[] = [
        ["GET", ""],
        ["DELETE", ""],
        ["GET", "/metrics"],
        ["POST", "/timeout", '{"timeout":1}'],
        ["POST", "/refreshes", "{}"],
        ["PUT", "/network", "{}"],
        ["POST", "/connect", '{"timeout":1}'],
      ];
      for (const [method, suffix, body] of routes) {
        const unknown = await api(method, `/sandboxes/${UNKNOWN_ID}${suffix}`, body);
        assertRefusal(unknown, 404, `${method} ${suffix}`);
        assert.match(
          message(unknown),
          new RegExp(`^Sandbox "${UNKNOWN_ID}" doesn't exist or you don't have access to it`),
        );
        for (const id of ["UPPER", "%2e%2e%2fetc", "a%00b", "%C3%BCn", "_"]) {
          const answer = await api(method, `/sandboxes/${id}${suffix}`, body);
          assertRefusal(answer, 400, `${method} ${id}${suffix}`);
          assert.equal(message(answer), "Invalid sandbox ID");
        }
      }
      assertRefusal(await api("POST", `/v2/sandboxes/${UNKNOWN_ID}/connect`, "{}"), 404, "connect v2");
    });

    it("is refused in a query", async () => {
      for (const query of [
        "limit=x",
        "limit=0",
        "limit=101",
        "nextToken=%%%",
        "nextToken=abc",
        "state=asleep",
        "order=up",
        "startedAfter=x",
      ]) {
        assertRefusal(await api("GET", `/v2/sandboxes?${query}`), 400, query);
      }
      for (const query of ["start=x", "end=-"])
        assertRefusal(await api("GET", `/sandboxes/ID/metrics?${query}`), 400, query);
      // A filter without a match is no bad input.
      assert.deepEqual((await api("GET", "/v2/sandboxes?metadata=a%3Db")).json(), []);
    });

    it("is refused without a key, and with a wrong one", async () => {
      const routes = [
        ["POST", "/sandboxes"],
        ["POST", "/v2/sandboxes"],
        ["GET", "/sandboxes"],
        ["GET", "/v2/sandboxes"],
        ["GET", "/sandboxes/ID"],
        ["DELETE", "/sandboxes/ID"],
        ["POST", "/sandboxes/ID/timeout"],
        ["POST", "/sandboxes/ID/refreshes"],
        ["PUT", "/sandboxes/ID/network"],
        ["POST", "/sandboxes/ID/connect"],
        ["POST", "/v2/sandboxes/ID/connect"],
        ["GET", "/no/such/route"],
      ] as const;
      for (const [method, path] of routes) {
        for (const [key, text] of [
          ["", "authorization header is missing"],
          ["nonsense", "Invalid API key format"],
          [`e2b_${"0".repeat(40)}`, "Cannot get the team for the given API key"],
          [API_KEY.slice(0, -1), "Cannot get the team for the given API key"],
        ] as const) {
          const answer = await api(method, path, method === "POST" ? "{" : undefined, key);
          assertRefusal(answer, 401, `${method} ${path} with '${key}'`);
          assert.equal(message(answer), text);
        }
      }
      assert.equal(await sandbox.isRunning(), true);
    });

    it("is refused at paths and methods that are not served", async () => {
      assertRefusal(await api("GET", "/no/such/route"), 404, "path");
      assertRefusal(await api("PATCH", "/sandboxes/ID"), 405, "method");
      // Node's parser refuses an unknown verb, without a JSON body.
      assert.match(
        await rawExchange(server.url, "BREW /sandboxes HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        /^HTTP\/1\.1 400 /,
      );
      assertRefusal(await api("GET", `/sandboxes/${"a".repeat(10_000)}`), [400, 404], "long path");
    });
  });

  describe("on envd's routes", () => {
    it("is refused with the wrong token, and with none", async () => {
      const routes: readonly (readonly [string, string])[] = [
        ["GET", "/envs"],
        ["GET", "/metrics"],
        ["GET", "/commands"],
        ["POST", "/commands"],
        ["GET", "/commands/1"],
        ["POST", "/commands/1/kill"],
        ["POST", "/files/compose"],
        ...[...Object.keys(UNARY), ...Object.keys(STREAMS)].map((path) => ["POST", path] as const),
      ];
      for (const [method, path] of routes) {
        for (const given of ["", "wrong", `${token}x`, token.slice(1)]) {
          const answer = await envd(method, path, {
            headers: { "x-access-token": given },
            ...(method === "POST" && { body: "{}" }),
          });
          assertRefusal(answer, 401, `${method} ${path}`);
          assert.deepEqual(answer.json(), {
            code: 401,
            message:
              "unauthorized access, please provide a valid access token or method signing if supported",
            // `/commands` is not part of E2B.
            ...(path.startsWith("/commands") && { reason: "access_token_invalid" }),
          });
        }
      }
      for (const method of ["GET", "POST"]) {
        const unsigned = await envd(method, "/files?path=x", { headers: { "x-access-token": "" } });
        assert.equal(message(unsigned), "missing signature query parameter");
        const forged = await envd(method, "/files?path=x&signature=v1_x", {
          headers: { "x-access-token": "" },
        });
        assert.equal(message(forged), "invalid signature");
        const wrong = await envd(method, "/files?path=x", { headers: { "x-access-token": "wrong" } });
        assert.equal(message(wrong), "access token present in header but does not match");
        for (const answer of [unsigned, forged, wrong]) assertRefusal(answer, 401, `${method} /files`);
      }
    });

    it("is refused where only E2B's control plane may ask", async () => {
      for (const path of ["/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade"]) {
        const answer = await envd("POST", path, { body: "{}" });
        assertRefusal(answer, 404, path);
        assert.equal((answer.json() as { path: string }).path, path);
      }
    });

    it("is refused by the command routes", async () => {
      for (const { path, wrong } of NDJSON_BODIES) {
        for (const [what, body] of UNREADABLE) assertRefusal(await envd("POST", path, { body }), 400, what);
        for (const body of wrong) {
          assertRefusal(await envd("POST", path, { body: JSON.stringify(body) }), 400, JSON.stringify(body));
        }
        assertRefusal(await envd("POST", path, { body: `"${"x".repeat(2 ** 21)}"` }), 413, "huge");
      }
      assertRefusal(await envd("GET", "/commands/abc"), 400, "pid");
      assertRefusal(await envd("GET", "/commands/4000000"), 404, "unknown pid");
      assertRefusal(await envd("POST", "/commands/4000000/kill"), 404, "unknown pid");
    });

    it("is refused by /files", async () => {
      const octets = { "content-type": "application/octet-stream" };
      const form = { "content-type": "multipart/form-data; boundary=B" };
      assertRefusal(await envd("GET", "/files?path=/does/not/exist"), 404, "missing");
      assertRefusal(await envd("GET", "/files?path=/tmp"), 400, "directory");
      assertRefusal(await envd("GET", "/files?path=nul%00"), 400, "NUL");
      assertRefusal(await envd("GET", "/files?path=~other/x"), 400, "somebody's home");
      assertRefusal(await envd("GET", "/files?path=x&username=nobody-at-all"), 401, "unknown user");
      assertRefusal(await envd("POST", "/files", { body: "x", headers: octets }), 400, "no path");
      assertRefusal(
        await envd("POST", "/files?path=/tmp", { body: "x", headers: octets }),
        400,
        "onto a directory",
      );
      assertRefusal(await envd("POST", "/files?path=x", { body: "{}" }), 400, "content type");
      assertRefusal(
        await envd("POST", "/files?path=x", { body: "x", headers: { ...octets, "content-encoding": "br" } }),
        400,
        "encoding",
      );
      assertRefusal(
        await envd("POST", "/files?path=x", {
          body: "no gzip",
          headers: { ...octets, "content-encoding": "gzip" },
        }),
        400,
        "broken gzip",
      );
      assertRefusal(
        await envd("POST", "/files?path=x", { body: "no boundary here", headers: form }),
        400,
        "broken form",
      );
      assertRefusal(
        await envd("POST", "/files?path=x", {
          body: "x",
          headers: { "content-type": "multipart/form-data" },
        }),
        400,
        "no boundary",
      );
      const half = '--B\r\nContent-Disposition: form-data; name="file"; filename="half.txt"\r\n\r\nhalf';
      assertRefusal(await envd("POST", "/files", { body: half, headers: form }), 400, "half a form");
      assert.equal(await sandbox.files.exists("half.txt"), false);
      assert.equal(await sandbox.files.exists("x"), false);
    });

    it("is refused by unary RPCs, with a Connect code", async () => {
      for (const [path, wrong] of Object.entries(UNARY)) {
        for (const [what, body] of UNREADABLE)
          assertConnectError(await envd("POST", path, { body }), `${path}: ${what}`);
        for (const body of wrong) {
          assertConnectError(
            await envd("POST", path, { body: JSON.stringify(body) }),
            `${path}: ${JSON.stringify(body)}`,
          );
        }
        assertConnectError(
          await envd("POST", path, { body: JSON.stringify({ path: "x".repeat(HUGE) }) }),
          `${path}: huge`,
        );
        assertRefusal(await envd("GET", path), 405, path);
        assertRefusal(
          await envd("POST", path, { body: "{}", headers: { "content-type": "text/plain" } }),
          415,
          path,
        );
      }
    });

    it("leaves its connection in use when it is refused before it is read", async (t) => {
      const agent = new Agent({ keepAlive: true, maxSockets: 1 });
      t.after(() => agent.destroy());
      for (let round = 0; round < 5; round += 1)
        assertConnectError(
          await envd("POST", "/process.Process/List", { body: "[".repeat(60_000), agent }),
          "long",
        );
      assert.equal((await envd("POST", "/process.Process/List", { body: "{}", agent })).status, 200);
    });

    it("ends a stream with an error that its client can read", async () => {
      for (const [path, wrong] of Object.entries(STREAMS)) {
        for (const body of wrong)
          assertStreamError(
            await stream(path, packFrame(JSON.stringify(body))),
            `${path}: ${JSON.stringify(body)}`,
          );
        for (const [what, body] of [
          ["no frame", Buffer.alloc(0)],
          ["half a head", Buffer.from([0, 0])],
          ["a frame that breaks off", packFrame('{"process":', { lengthBytes: 1_000 })],
          ["a frame that is said to be huge", packFrame("{}", { lengthBytes: 0xffff_ffff })],
          ["a huge frame", packFrame(JSON.stringify({ path: "x".repeat(HUGE) }))],
          ["a frame without JSON", packFrame("}{")],
          ["a compressed frame that is not", packFrame("{}", { flags: 1 })],
          ["flags of all kinds", packFrame("{}", { flags: 0xff })],
          ["no Connect at all", Buffer.from("hello, world, this is no frame")],
        ] as const) {
          assertStreamError(await stream(path, body), `${path}: ${what}`);
        }
        const unary = await envd("POST", path, { body: "{}" });
        assertRefusal(unary, 415, `${path} as unary`);
      }
    });

    it("is refused when the time-out is no number", async () => {
      const start = packFrame(JSON.stringify({ process: { cmd: "/bin/true" } }));
      for (const timeout of ["soon", "-1", "1e3", "0x10"]) {
        const answer = await envd("POST", "/process.Process/Start", {
          body: start,
          headers: {
            "content-type": "application/connect+json",
            "connect-protocol-version": "1",
            "connect-timeout-ms": timeout,
          },
        });
        if (answer.status === 200) assertStreamError(answer, timeout);
        else assertRefusal(answer, 400, timeout);
      }
    });
  });

  describe("on the code interpreter's routes", () => {
    it("is refused with details when it has the wrong shape", async () => {
      for (const { path, wrong } of CODE_BODIES) {
        for (const [what, body] of UNREADABLE) {
          const answer = await code("POST", path, { body });
          assert.equal(answer.status, 422, `${path}: ${what}: ${answer.status} ${answer.text}`);
          assert.ok(Array.isArray((answer.json() as { detail: unknown }).detail), answer.text);
        }
        for (const body of wrong) {
          const answer = await code("POST", path, { body: JSON.stringify(body) });
          assert.equal(
            answer.status,
            422,
            `${path}: ${JSON.stringify(body)}: ${answer.status} ${answer.text}`,
          );
        }
      }
    });

    it("is refused when it names what is not there", async () => {
      const id = "00000000-0000-0000-0000-000000000000";
      for (const [method, path, body] of [
        ["POST", "/execute", { code: "1", context_id: id }],
        ["POST", `/contexts/${id}/restart`, undefined],
        ["DELETE", `/contexts/${id}`, undefined],
      ] as const) {
        const answer = await code(method, path, body && { body: JSON.stringify(body) });
        assert.equal(answer.status, 404, `${path}: ${answer.text}`);
        assert.equal(answer.text, `Context ${id} not found`);
      }
      const both = await code("POST", "/execute", {
        body: JSON.stringify({ code: "1", context_id: id, language: "python" }),
      });
      assert.equal(both.status, 400);
      assert.equal(both.text, "Only one of context_id or language can be provided");
      const language = await code("POST", "/execute", {
        body: JSON.stringify({ code: "1", language: "cobol" }),
      });
      assert.match(language.text, /cobol/);
      assert.ok(language.status >= 400, String(language.status));
    });

    it("is refused with the wrong token", async () => {
      for (const given of ["", "wrong"]) {
        const answer = await code("POST", "/execute", {
          body: '{"code":"1"}',
          headers: { "x-access-token": given },
        });
        assertRefusal(answer, 401, given);
      }
      assertRefusal(
        await code("GET", "/contexts", { headers: { "x-access-token": "wrong" } }),
        401,
        "contexts",
      );
    });
  });

  it("finds no sandbox: 502 on every route inside, with the edge's body", async () => {
    const dead = await Sandbox.create();
    await dead.kill();
    for (const id of [UNKNOWN_ID, dead.sandboxId]) {
      const answers = await Promise.all([
        envd("GET", "/health", { id }),
        envd("GET", "/envs", { id }),
        envd("GET", "/files?path=x", { id }),
        envd("POST", "/files?path=x", { id, body: "x" }),
        envd("GET", "/commands", { id }),
        ...[...Object.keys(UNARY), ...Object.keys(STREAMS)].map((path) =>
          envd("POST", path, { id, body: "{}" }),
        ),
        code("GET", "/health", { id }),
        code("POST", "/execute", { id, body: '{"code":"1"}' }),
        code("GET", "/contexts", { id }),
      ]);
      for (const answer of answers) {
        assert.equal(answer.status, 502);
        assert.deepEqual(answer.json(), { sandboxId: id, message: "The sandbox was not found", code: 502 });
      }
    }
  });

  it("makes no sense as an address: 400", async () => {
    const refusals: readonly (readonly [Readonly<Record<string, string>>, string])[] = [
      [{ host: "nonsense.localhost" }, "Invalid host"],
      [{ host: `x-${UNKNOWN_ID}.localhost` }, "Invalid sandbox port"],
      [{ host: `99999-${UNKNOWN_ID}.localhost` }, "Invalid sandbox port"],
      [{ host: "80-no_id.localhost" }, "Invalid sandbox ID"],
      [{ "e2b-sandbox-id": UNKNOWN_ID }, "missing header"],
      [{ "e2b-sandbox-port": "49983" }, "missing header"],
      [{ "e2b-sandbox-id": "../x", "e2b-sandbox-port": "49983" }, "Invalid sandbox ID"],
      [{ "e2b-sandbox-id": UNKNOWN_ID, "e2b-sandbox-port": "-1" }, "Invalid sandbox port"],
      [{ "e2b-sandbox-id": UNKNOWN_ID, "e2b-sandbox-port": "0x10" }, "Invalid sandbox port"],
    ];
    for (const [headers, text] of refusals) {
      const answer = await exchange(server.url, { path: "/health", headers });
      assert.equal(answer.status, 400, JSON.stringify(headers));
      assert.equal(answer.text, text, JSON.stringify(headers));
    }
    for (const name of ["envd", "code"]) {
      const answer = await exchange(server.urls[name] ?? "", {
        path: "/health",
        headers: { host: "elsewhere.example" },
      });
      assert.equal(answer.status, 403, name);
    }
  });

  it("is no HTTP", async () => {
    for (const bytes of [
      "\0\0\0\0\r\n\r\n",
      "GET\r\n\r\n",
      "GET / HTTP/9.9\r\n\r\n",
      "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n",
    ]) {
      assert.match(await rawExchange(server.url, bytes), /^HTTP\/1\.1 4\d\d /, JSON.stringify(bytes));
    }
    const large = `GET / HTTP/1.1\r\nhost: localhost\r\nx: ${"y".repeat(100_000)}\r\n\r\n`;
    assert.match(await rawExchange(server.url, large), /^HTTP\/1\.1 431 /);
    // A target that is no path, and one that is no URL.
    for (const target of ["*", "//", "http://[", "/%"]) {
      const answer = await rawExchange(
        server.url,
        `GET ${target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n`,
      );
      assert.match(answer, /^HTTP\/1\.1 4\d\d /, target);
    }
  });

  it("breaks off: clients that go away in the middle of a body", async () => {
    const address = `host: localhost\r\nx-api-key: ${API_KEY}\r\n`;
    const aimed = `host: localhost\r\ne2b-sandbox-id: ${sandbox.sandboxId}\r\ne2b-sandbox-port: 49983\r\nx-access-token: ${token}\r\n`;
    for (const request of [
      `POST /v2/sandboxes HTTP/1.1\r\n${address}content-length: 1000\r\n\r\n{"templateID"`,
      `POST /v2/sandboxes HTTP/1.1\r\n${address}transfer-encoding: chunked\r\n\r\nffff\r\n{"templateID"`,
      `POST /files?path=broken.bin HTTP/1.1\r\n${aimed}content-type: application/octet-stream\r\ncontent-length: 1000\r\n\r\nhalf`,
      `POST /process.Process/Start HTTP/1.1\r\n${aimed}content-type: application/connect+json\r\ncontent-length: 100\r\n\r\n\0\0\0`,
      `POST /process.Process/List HTTP/1.1\r\n${aimed}content-type: application/json\r\ncontent-length: 100\r\n\r\n{`,
    ]) {
      await rawExchange(server.url, request, { hangUp: true });
    }
    assert.equal(await sandbox.files.exists("broken.bin"), false, "half an upload leaves no file");
  });

  it("is a WebSocket where none is served", async () => {
    const upgrade =
      "upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n";
    const answer = await rawExchange(
      server.url,
      `GET /nothing HTTP/1.1\r\nhost: localhost\r\nx-api-key: ${API_KEY}\r\n${upgrade}\r\n`,
    );
    assert.match(answer, /^HTTP\/1\.1 404 /);
    const lost = await rawExchange(
      server.url,
      `GET / HTTP/1.1\r\nhost: 8080-${UNKNOWN_ID}.localhost\r\n${upgrade}\r\n`,
    );
    assert.match(lost, /^HTTP\/1\.1 502 /);
  });

  it("never comes: a client that does not finish its headers holds up nobody", async () => {
    const { hostname, port } = new URL(server.url);
    const slow = connect(Number(port), hostname);
    slow.on("error", () => undefined);
    slow.write("GET / HTTP/1.1\r\nhost: localhost\r\n");
    try {
      assert.equal((await api("GET", "/health")).status, 200);
    } finally {
      slow.destroy();
    }
  });

  it("leaves a server that still serves", async () => {
    assert.equal((await exchange(server.urls["ops"] ?? "", { path: "/readyz" })).status, 200);
    assert.equal((await sandbox.commands.run("echo still here")).stdout, "still here\n");
    assert.equal((await sandbox.runCode("6 * 7")).text, "42");
    await sandbox.files.write("after.txt", "fine");
    assert.equal(await sandbox.files.read("after.txt"), "fine");
    const another = await Sandbox.create();
    assert.equal(await another.kill(), true);
  });
});

/** Asserts that the JSON body of a refusal has its status and a message. */
function assertRefusal(
  answer: Pick<Answer, "status" | "text">,
  status: number | readonly number[],
  what: string,
): void {
  const expected = [status].flat();
  assert.ok(
    expected.includes(answer.status),
    `${what}: answered ${answer.status} ${answer.text}, not ${expected.join("/")}`,
  );
  const body = JSON.parse(answer.text) as { readonly code?: unknown; readonly message?: unknown };
  assert.equal(body.code, answer.status, `${what}: ${answer.text}`);
  assert.ok(typeof body.message === "string" && body.message !== "", `${what}: ${answer.text}`);
}

function message(answer: Answer): string {
  return String((answer.json() as { readonly message?: unknown }).message);
}

/** Asserts that a unary RPC failed with a status and a Connect code. */
function assertConnectError(answer: Answer, what: string): void {
  assert.ok(answer.status >= 400 && answer.status < 600, `${what}: answered ${answer.status} ${answer.text}`);
  assertClientsFault(answer.json(), `${what}: ${answer.status} ${answer.text}`);
}

/** Asserts that a stream failed: HTTP 200, and an EndStream message with an error. */
function assertStreamError(answer: Answer, what: string): void {
  assert.equal(answer.status, 200, `${what}: answered ${answer.status} ${answer.text}`);
  const last = unpackFrames(answer.body).at(-1);
  assert.equal(last?.flags, 2, `${what}: ends without EndStream: ${answer.text}`);
  assertClientsFault((last.message as { readonly error?: unknown }).error, `${what}: ${answer.text}`);
}

/** No bad input is the server's fault: never `unknown`, nor a bare `internal error`. */
function assertClientsFault(error: unknown, what: string): void {
  const { code, message: text } = (error ?? {}) as { readonly code?: unknown; readonly message?: unknown };
  assert.match(String(code), /^[a-z_]+$/, what);
  assert.notEqual(code, "unknown", what);
  assert.notEqual(text, "internal error", what);
  assert.ok(typeof text === "string" && text !== "", what);
}
