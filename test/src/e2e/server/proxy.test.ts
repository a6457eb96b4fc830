import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { request as httpRequest, type IncomingMessage } from "node:http";
import { createServer } from "node:net";
import { after, before, describe, it } from "node:test";
import { Sandbox } from "e2b";
import { WebSocket } from "ws";
import type { TestServer } from "@coppice/core/testing";
import { eventually, freePort } from "@coppice/core/testing";
import { exchange } from "../../harness/clients/exchange.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

const UNKNOWN_ID = "iabcdefghij0123456789";
const BODY_BYTES = 32 * 2 ** 20;

/** The program inside. It answers with the received request, or streams the request's body back. */
const APPLICATION = `
import { createServer } from "node:http";
import { WebSocketServer } from ${JSON.stringify(import.meta.resolve("ws"))};
const server = createServer((request, response) => {
  if (request.url === "/echo") {
    response.writeHead(200, { "content-type": "application/octet-stream" });
    response.flushHeaders();
    request.pipe(response);
  } else if (request.url === "/forever") {
    response.writeHead(200);
    const timer = setInterval(() => response.write("tick\\n"), 20);
    response.on("close", () => clearInterval(timer));
  } else if (request.url === "/break") {
    response.writeHead(200, { "content-length": "1000" });
    response.write("half", () => response.destroy());
  } else {
    const { method, url, headers } = request;
    response.writeHead(418, "Short and stout", { "x-inside": ["one", "two"] });
    response.end(JSON.stringify({ method, url, headers }));
  }
});
new WebSocketServer({ server, path: "/socket", perMessageDeflate: false }).on("connection", (socket, request) => {
  socket.send("hello " + request.headers["x-question"]);
  if (request.headers["x-question"] === "reset") request.socket.resetAndDestroy();
  socket.on("message", (data, isBinary) => (String(data) === "bye" ? socket.close(4001, "as asked") : socket.send(data, { binary: isBinary })));
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
`;

describe("a port inside a sandbox", { timeout: 240_000 }, () => {
  let server: TestServer;
  let sandbox: Sandbox;
  let port: number;

  before(async () => {
    server = await startFullServer();
    pointSdkAt(server.url);
    sandbox = await Sandbox.create();
    port = await serveInside(sandbox);
  });
  after(() => server.stop());

  const host = (): string => `${port}-${sandbox.sandboxId}.localhost`;
  const addresses = (): readonly (readonly [string, Readonly<Record<string, string>>])[] => [
    ["by host", { host: host() }],
    ["by headers", { "e2b-sandbox-id": sandbox.sandboxId, "e2b-sandbox-port": String(port) }],
  ];

  it("is reached by host and by headers, and its answer comes back as it is", async () => {
    for (const [what, headers] of addresses()) {
      const answer = await exchange(server.url, {
        method: "PATCH",
        path: "/path/%20x?q=1&q=%2F",
        headers: { ...headers, "x-mine": "a", "content-type": "text/plain" },
        body: "ignored",
      });
      assert.equal(answer.status, 418, what);
      assert.equal(answer.headers["x-inside"], "one, two", what);
      const seen = answer.json() as { method: string; url: string; headers: Record<string, string> };
      assert.equal(seen.method, "PATCH");
      assert.equal(seen.url, "/path/%20x?q=1&q=%2F");
      assert.equal(seen.headers["x-mine"], "a");
      assert.equal(seen.headers["x-forwarded-proto"], "http");
      assert.equal(seen.headers["x-forwarded-for"], "127.0.0.1");
    }
  });

  it("streams both ways at the same time", async () => {
    for (const [what, headers] of addresses()) {
      const { hostname, port: serverPort } = new URL(server.url);
      const outgoing = httpRequest({ hostname, port: serverPort, method: "POST", path: "/echo", headers });
      outgoing.flushHeaders();
      const [incoming] = (await once(outgoing, "response")) as [IncomingMessage];
      for (const text of ["first", "second", "third"]) {
        outgoing.write(text);
        const [echoed] = (await once(incoming, "data")) as [Buffer];
        assert.equal(echoed.toString(), text, what);
      }
      outgoing.end();
      incoming.resume();
      await once(incoming, "end");
    }
  });

  it("takes and gives large bodies whole", async () => {
    const sent = randomBytes(BODY_BYTES);
    const answer = await exchange(server.url, {
      method: "POST",
      path: "/echo",
      headers: { host: host() },
      body: sent,
    });
    assert.equal(answer.body.length, sent.length);
    assert.equal(digest(answer.body), digest(sent));
  });

  it("speaks WebSocket", async () => {
    const url = `${server.url.replace("http", "ws")}/socket`;
    for (const [what, headers] of addresses()) {
      const socket = new WebSocket(url, {
        headers: { ...headers, "x-question": what },
        perMessageDeflate: false,
      });
      const received: Buffer[] = [];
      socket.on("message", (data: Buffer) => received.push(data));
      await once(socket, "open");
      await eventually("the greeting", () => received.length === 1);
      assert.equal(String(received[0]), `hello ${what}`);
      const large = randomBytes(2 ** 20);
      socket.send(large);
      socket.send("and text");
      await eventually("both echoes", () => received.length === 3);
      assert.equal(digest(received[1] ?? Buffer.alloc(0)), digest(large));
      assert.equal(String(received[2]), "and text");
      socket.send("bye");
      const [code, reason] = (await once(socket, "close")) as [number, Buffer];
      assert.equal(code, 4001, what);
      assert.equal(String(reason), "as asked");
    }
  });

  it("resets a WebSocket: the client's connection ends, too", async () => {
    const headers = { "host": host(), "x-question": "reset" };
    const socket = new WebSocket(`${server.url.replace("http", "ws")}/socket`, { headers });
    const [code] = (await once(socket, "close", { signal: AbortSignal.timeout(5_000) })) as [number];
    assert.equal(code, 1006);
  });

  it("that nobody listens on is answered 502, and says which", async () => {
    const closed = await freePort();
    const answer = await exchange(server.url, {
      headers: { host: `${closed}-${sandbox.sandboxId}.localhost` },
    });
    assert.equal(answer.status, 502);
    assert.deepEqual(answer.json(), {
      sandboxId: sandbox.sandboxId,
      message: "The sandbox is running but port is not open",
      port: closed,
      code: 502,
    });
  });

  it("that opens a moment later is waited for", async () => {
    const late = await freePort();
    const answer = exchange(server.url, { headers: { host: `${late}-${sandbox.sandboxId}.localhost` } });
    await new Promise((resolve) => setTimeout(resolve, 150));
    const listener = createServer((socket) => socket.end("HTTP/1.1 204 Late\r\nconnection: close\r\n\r\n"));
    listener.listen(late, "127.0.0.1");
    try {
      assert.equal((await answer).status, 204);
    } finally {
      listener.close();
    }
  });

  it("of an unknown sandbox is answered 502, a host that makes no sense 400", async () => {
    const unknown = await exchange(server.url, { headers: { host: `${port}-${UNKNOWN_ID}.localhost` } });
    assert.equal(unknown.status, 502);
    assert.deepEqual(unknown.json(), {
      sandboxId: UNKNOWN_ID,
      message: "The sandbox was not found",
      code: 502,
    });
    for (const [bad, text] of [
      ["nonsense.localhost", "Invalid host"],
      [`${port}-N0_ID.localhost`, "Invalid sandbox ID"],
      [`http-${sandbox.sandboxId}.localhost`, "Invalid sandbox port"],
    ] as const) {
      const answer = await exchange(server.url, { headers: { host: bad } });
      assert.equal(answer.status, 400, bad);
      assert.equal(answer.text, text, bad);
    }
  });

  it("breaks off where the program inside broke off", async () => {
    await assert.rejects(exchange(server.url, { path: "/break", headers: { host: host() } }), {
      code: "ECONNRESET",
    });
  });

  it("is for those who have the traffic token, where the sandbox was made so", async () => {
    const closed = await Sandbox.create({
      network: { allowPublicTraffic: false, maskRequestHost: "localhost:${PORT}" },
    });
    const closedPort = await serveInside(closed);
    const headers = { host: `${closedPort}-${closed.sandboxId}.localhost` };
    const refused = await exchange(server.url, { headers });
    assert.equal(refused.status, 403);
    const token = { "e2b-traffic-access-token": closed.trafficAccessToken ?? "" };
    const answer = await exchange(server.url, { headers: { ...headers, ...token } });
    assert.equal(answer.status, 418);
    const seen = answer.json() as { headers: Record<string, string> };
    assert.equal(seen.headers["host"], `localhost:${closedPort}`);
    assert.equal(seen.headers["x-forwarded-host"], headers.host);
    assert.equal((await Sandbox.getFullInfo(closed.sandboxId)).network?.allowPublicTraffic, false);
    const again = await Sandbox.connect(closed.sandboxId);
    assert.equal(again.trafficAccessToken, closed.trafficAccessToken);
    await closed.kill();
  });

  it("is cut when the sandbox is killed, streams and sockets alike", async () => {
    const doomed = await Sandbox.create();
    const headers = { host: `${await serveInside(doomed)}-${doomed.sandboxId}.localhost` };
    const stream = exchange(server.url, { path: "/forever", headers });
    const streamEnds = assert.rejects(stream, { code: "ECONNRESET" });
    const socket = new WebSocket(`${server.url.replace("http", "ws")}/socket`, { headers });
    const socketEnds = once(socket, "close");
    await once(socket, "open");
    await doomed.kill();
    await streamEnds;
    assert.equal((await socketEnds)[0], 1006);
  });
});

async function serveInside(sandbox: Sandbox): Promise<number> {
  await sandbox.files.write("application.mjs", APPLICATION);
  // A backend without isolation shares the host's programs.
  const handle = await sandbox.commands.run(`exec ${process.execPath} application.mjs`, {
    background: true,
    timeoutMs: 0,
  });
  handle.wait().catch(() => undefined);
  return eventually(`the port (${handle.stderr})`, () => Number(handle.stdout), 10_000);
}

function digest(bytes: Buffer): string {
  return createHash("sha256").update(bytes).digest("hex");
}
