import assert from "node:assert/strict";
import { once } from "node:events";
import { connect, type Socket } from "node:net";
import type { Duplex } from "node:stream";
import { after, before, beforeEach, describe, it } from "node:test";
import { memoryBackend } from "../../testing/memory-backend.js";
import { startTestServer, type TestServer } from "../../testing/start-test-server.js";

const PORT = 8080;
const PATIENCE_MS = 8_000;
const GOOD = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine";
const SWITCHED = "HTTP/1.1 101 Yes\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
const WEBSOCKET = {
  "Connection": "Upgrade",
  "Upgrade": "websocket",
  "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
};

/** Resolves when a number has not changed for a moment. */
async function untilStill(read: () => number): Promise<void> {
  for (let before = -1; before !== read();) {
    before = read();
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

/** A client with one connection. It sends raw requests and records everything that it receives. */
class Client {
  readonly socket: Duplex;
  text = "";
  /** A wait fails with its own error before the time limit of the suite. */
  readonly #patience = { signal: AbortSignal.timeout(PATIENCE_MS) };

  constructor(url: string) {
    this.socket = connect(Number(new URL(url).port), "127.0.0.1");
    this.socket.on("error", () => undefined);
    this.socket.setEncoding("latin1");
    this.socket.on("data", (text: string) => (this.text += text));
  }

  ask(headers: Record<string, string>, { path = "/", method = "GET" } = {}): void {
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
    this.socket.write(`${method} ${path} HTTP/1.1\r\nHost: localhost\r\n${lines.join("")}\r\n`);
  }

  /** Resolves when the received text matches. */
  async sees(pattern: RegExp): Promise<RegExpExecArray> {
    for (;;) {
      const found = pattern.exec(this.text);
      if (found !== null) return found;
      if (this.socket.readableEnded || this.socket.destroyed) assert.match(this.text, pattern);
      await Promise.race([
        once(this.socket, "data", this.#patience),
        once(this.socket, "close", this.#patience),
      ]);
    }
  }

  async ends(): Promise<string> {
    if (!this.socket.destroyed) await once(this.socket, "close", this.#patience);
    return this.text;
  }
}

describe("a hostile program in a sandbox", { timeout: 60_000 }, () => {
  let server: TestServer;
  let addressed: Record<string, string>;
  /** Writes the program's answer to a request. */
  let answer: (connection: Duplex, request: string) => void;
  let requests: string[];

  before(async () => {
    const accept = (connection: Duplex): void => {
      connection.on("error", () => undefined);
      let text = "";
      connection.on("data", (data: Buffer) => {
        text += data.toString("latin1");
        if (!text.includes("\r\n\r\n")) return;
        requests.push(text);
        const request = text;
        text = "";
        setImmediate(() => answer(connection, request));
      });
    };
    server = await startTestServer({
      server: { http: { idleTimeout: "2s" } },
      plugins: [[memoryBackend({ ports: { [PORT]: accept } }), {}]],
    });
    const { record } = await server.sandboxes.create({
      template: "base",
      timeoutMs: undefined,
      secure: false,
    });
    addressed = { "E2b-Sandbox-Id": record.id, "E2b-Sandbox-Port": String(PORT) };
  });
  after(() => server.stop());
  beforeEach(() => {
    requests = [];
    answer = (connection) => connection.write(GOOD);
  });

  async function stillServes(client = new Client(server.url)): Promise<void> {
    answer = (connection) => connection.write(GOOD);
    const seen = client.text.length;
    client.ask({ ...addressed, Connection: "close" });
    assert.match((await client.ends()).slice(seen), /^HTTP\/1\.1 200 OK\r\n[^]*\r\n\r\nfine$/);
  }

  /** Notes the connections on which requests come, and answers. */
  function noting(bytes: string, connections: Duplex[]): typeof answer {
    return (connection) => {
      connections.push(connection);
      connection.write(bytes);
    };
  }

  it("that sends more than its answer is asked nothing else on that connection", async () => {
    const connections: Duplex[] = [];
    answer = noting(`${GOOD}HTTP/1.1 200 OK\r\n`, connections);
    const client = new Client(server.url);
    client.ask(addressed);
    await client.sees(/fine$/);
    client.ask({ ...addressed, Connection: "close" });
    assert.equal((await client.ends()).split("fine").length - 1, 2);
    assert.notEqual(connections[0], connections[1]);
    if (connections[0]?.destroyed === false) await once(connections[0], "close");
  });

  it("that answers before it has the whole request is asked nothing else on that connection", async () => {
    const connections: Duplex[] = [];
    answer = noting(GOOD, connections);
    const client = new Client(server.url);
    client.ask({ ...addressed, "Transfer-Encoding": "chunked" }, { method: "POST" });
    client.socket.write("4\r\nhalf\r\n");
    await client.sees(/fine$/);
    await stillServes();
    answer = noting(GOOD, connections);
    const other = new Client(server.url);
    other.ask({ ...addressed, Connection: "close" });
    await other.ends();
    assert.notEqual(connections[0], connections[1]);
    client.socket.destroy();
  });

  for (const [what, head] of [
    ["a reason that cannot be written", "HTTP/1.1 200 O\x01K"],
    ["a reason of bytes beyond ASCII", "HTTP/1.1 200 \xff\xfe"],
    ["a status below all others", "HTTP/1.1 099 No"],
    ["the status 000", "HTTP/1.1 000 No"],
    ["a status of four digits", "HTTP/1.1 2000 No"],
    ["no status", "HTTP/1.1 "],
    ["the status 101 that nobody asked for", "HTTP/1.1 101 No\r\nConnection: Upgrade\r\nUpgrade: websocket"],
    ["a header's name that cannot be written", "HTTP/1.1 200 OK\r\nx\x01: y"],
    ["a header's value that cannot be written", "HTTP/1.1 200 OK\r\nx: a\x01b"],
    ["two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 3"],
    ["a length and chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked"],
    ["a folded header", "HTTP/1.1 200 OK\r\nX: a\r\n b"],
    ["more headers than fit", `HTTP/1.1 200 OK\r\nX: ${"x".repeat(16 * 1024)}`],
    ["interim answers without end", "HTTP/1.1 100 Continue\r\n\r\n".repeat(1000)],
  ] as const) {
    it(`answers with ${what}: one answer, and the server and the connection go on`, async () => {
      answer = (connection) => connection.write(`${head}\r\nContent-Length: 2\r\n\r\nhi`);
      const client = new Client(server.url);
      client.ask(addressed);
      // Only the reason phrase may be missing.
      await client.sees(/^HTTP\/1\.1 (502 Bad Gateway\r\n[^]*"code":502\}|200 OK\r\n[^]*\r\n\r\nhi)$/);
      await stillServes(client);
    });
  }

  for (const [method, head] of [
    ["HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 4"],
    ["HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked"],
    ["GET", "HTTP/1.1 204 No Content"],
    ["GET", "HTTP/1.1 204 No Content\r\nContent-Length: 4"],
    ["POST", "HTTP/1.1 304 Not Modified\r\nContent-Length: 4"],
  ] as const) {
    it(`sends a body where there is none (${method}: ${head.slice(9)}): the answer is without it`, async () => {
      answer = (connection) => connection.write(`${head}\r\n\r\nevil`);
      const client = new Client(server.url);
      client.ask({ ...addressed, Connection: "close" }, { method });
      const text = await client.ends();
      assert.ok(text.startsWith(head.slice(0, 12)) && !text.includes("evil"), text);
      if (head.includes(" 204 ")) assert.doesNotMatch(text, /content-length/i);
      await stillServes();
    });
  }

  it("answers in chunks, to a client of HTTP/1.0: that gets the body alone", async () => {
    answer = (connection) =>
      connection.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n");
    const client = new Client(server.url);
    const lines = Object.entries(addressed).map(([name, value]) => `${name}: ${value}\r\n`);
    client.socket.write(`GET / HTTP/1.0\r\nHost: localhost\r\n${lines.join("")}\r\n`);
    const text = await client.ends();
    assert.match(text, /^HTTP\/1\.1 200 OK\r\n[^]*\r\n\r\nfine$/);
    assert.doesNotMatch(text, /transfer-encoding/i);
  });

  it("answers with a custom status: the reason phrase is left out", async () => {
    answer = (connection) => connection.write("HTTP/1.1 418 Short and stout\r\nContent-Length: 0\r\n\r\n");
    const client = new Client(server.url);
    client.ask({ ...addressed, Connection: "close" });
    assert.match(await client.ends(), /^HTTP\/1\.1 418 I'm a Teapot\r\n/);
  });

  it("refuses an upgrade and reads on: its answer is the connection's last, and it receives nothing more", async () => {
    const secret = "x-api-key: e2b_secret";
    for (const refusal of [
      "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: keep-alive\r\n\r\nevil",
      "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nevilHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nevil\r\n0\r\n\r\n",
    ]) {
      requests = [];
      answer = (connection) => connection.write(refusal);
      const client = new Client(server.url);
      client.ask({ ...addressed, ...WEBSOCKET });
      await client.sees(/evil/);
      // The next request on this connection, as a proxy in front of the server would send it.
      client.socket.write(`GET /sandboxes HTTP/1.1\r\nHost: localhost\r\n${secret}\r\n\r\n`);
      const text = await client.ends();
      assert.match(text, /^HTTP\/1\.1 (200|404) [^]*\r\nconnection: close\r\n/i, refusal);
      assert(!text.includes("EVIL") && text.split("HTTP/1.1").length === 2, text);
      assert.equal(requests.length, 1);
      assert(!requests.join().includes("secret"));
    }
    await stillServes();
  });

  it("answers an upgrade with what is no HTTP, or not at all: 502, and the connection ends", async () => {
    for (const garbage of [
      "\x16\x03\x01",
      "HTTP/1.1 099 No\r\nContent-Length: 0\r\n\r\n",
      "HTTP/1.1 101 Fine\r\nContent-Length: 0\r\n\r\n",
      undefined,
    ]) {
      answer = (connection) =>
        garbage === undefined ? connection.destroy() : connection.end(garbage, "latin1");
      const client = new Client(server.url);
      client.ask({ ...addressed, ...WEBSOCKET });
      assert.match(await client.ends(), /^HTTP\/1\.1 502 [^]*connection: close[^]*"code":502\}$/i, garbage);
    }
    await stillServes();
  });

  it("does not answer an upgrade whose client leaves: its connection ends, also after bytes that came too early", async () => {
    for (const early of ["", "early"]) {
      const { promise: ended, resolve, reject } = Promise.withResolvers<void>();
      AbortSignal.timeout(PATIENCE_MS).onabort = () =>
        reject(new Error("the program's connection stays open"));
      answer = (connection) => {
        connection.once("close", resolve);
        client.socket.write(early);
        client.socket.end();
      };
      const client = new Client(server.url);
      client.ask({ ...addressed, ...WEBSOCKET });
      await ended;
      assert.equal(await client.ends(), "");
    }
    await stillServes();
  });

  it("leaves in the middle of an answer: its client can tell that from the answer's end", async () => {
    answer = (connection) => {
      connection.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n");
      setImmediate(() => connection.destroy());
    };
    const client = new Client(server.url);
    client.ask({ ...addressed, Connection: "close" });
    const text = await client.ends();
    assert.match(text, /half/);
    assert.doesNotMatch(text, /\r\n0\r\n\r\n$/);
    await stillServes();
  });

  it("leaves in the middle of a pipelined answer, before its turn: the connection ends with the one before it", async () => {
    answer = (connection, request) => {
      if (request.startsWith("GET /first")) {
        setTimeout(() => connection.write(GOOD), 100);
        return;
      }
      connection.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n");
      setImmediate(() => connection.destroy());
    };
    const client = new Client(server.url);
    for (const path of ["/first", "/second"]) client.ask(addressed, { path });
    assert.match(await client.ends(), /^HTTP\/1\.1 200 OK\r\n[^]*\r\n\r\nfine$/);
    await stillServes();
  });

  it("does not answer an upgrade: its client's early bytes are limited", async () => {
    const asked = Promise.withResolvers<void>();
    answer = () => asked.resolve();
    const client = new Client(server.url);
    client.ask({ ...addressed, ...WEBSOCKET });
    await asked.promise;
    client.socket.write("x".repeat(64 * 1024 + 1));
    assert.equal(await client.ends(), "");
    await stillServes();
  });

  it("gets a tunnel after its answer 101, both ways and to the end", async () => {
    answer = (connection, request) => {
      if (request.startsWith("GET"))
        connection.write(
          "HTTP/1.1 101 Switching\r\nX-Mine: Yes\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nfirst",
        );
    };
    const client = new Client(server.url);
    client.ask({ ...addressed, ...WEBSOCKET });
    await client.sees(/^HTTP\/1\.1 101 Switching Protocols\r\nX-Mine: Yes\r\n[^]*\r\n\r\nfirst$/);
    answer = (connection, request) => connection.end(`echo ${request}`);
    client.socket.write("bytes\r\n\r\n");
    assert.match(await client.ends(), /echo bytes\r\n\r\n$/);
  });

  for (const [what, leave] of [
    ["breaks a tunnel off", (connection: Duplex) => void connection.destroy()],
    [
      "keeps its end of a tunnel open when the client has closed",
      (_: Duplex, { socket }: Client) => void socket.end(),
    ],
  ] as const) {
    it(`${what}: the client's connection ends`, async () => {
      const tunnelled = Promise.withResolvers<Duplex>();
      answer = (connection) => {
        connection.write(SWITCHED);
        tunnelled.resolve(connection);
      };
      const client = new Client(server.url);
      client.ask({ ...addressed, ...WEBSOCKET });
      const connection = await tunnelled.promise;
      await client.sees(/^HTTP\/1\.1 101/);
      leave(connection, client);
      await client.ends();
      await stillServes();
    });
  }

  it("floods a tunnel, and is not read faster than its client reads", async () => {
    const block = Buffer.alloc(64 * 1024);
    let takenBytes = 0;
    answer = (connection) => {
      connection.write(SWITCHED);
      const flood = (): void => {
        takenBytes += block.length;
        connection.write(block, (error) => error ?? setImmediate(flood));
      };
      flood();
    };
    const client = new Client(server.url);
    client.ask({ ...addressed, ...WEBSOCKET });
    await once(client.socket, "data");
    client.socket.pause();
    await untilStill(() => takenBytes);
    // Socket buffers of both ends hold a few MiB.
    assert.ok(takenBytes < 16 * 2 ** 20, `${takenBytes} bytes were taken for a client that reads none`);
    await stillServes();
    client.socket.destroy();
  });

  it("reads nothing of a tunnel: its client is not read, either, and waits", async () => {
    const far = Promise.withResolvers<Duplex>();
    answer = (connection) => {
      connection.write(SWITCHED);
      connection.removeAllListeners("data").pause();
      far.resolve(connection);
    };
    const client = new Client(server.url);
    client.ask({ ...addressed, ...WEBSOCKET });
    await client.sees(/^HTTP\/1\.1 101/);
    const connection = await far.promise;
    const sent = Buffer.alloc(100 * 2 ** 20, "x");
    let isSent = false;
    client.socket.write(sent, () => (isSent = true));
    await new Promise((resolve) => setTimeout(resolve, 500));
    assert.equal(isSent, false);
    await stillServes();
    let receivedBytes = 0;
    const all = Promise.withResolvers<void>();
    connection.on("data", (bytes: Buffer) => {
      receivedBytes += bytes.length;
      if (receivedBytes === sent.length) all.resolve();
    });
    connection.resume();
    await all.promise;
    client.socket.destroy();
  });

  it("reads nothing of a tunnel, whose client leaves: its connection ends after the idle time-out, no other's", async () => {
    const tunnels: Duplex[] = [];
    answer = (connection) => {
      connection.write(SWITCHED);
      connection.removeAllListeners("data").pause();
      tunnels.push(connection);
    };
    const [leaving, idle] = [new Client(server.url), new Client(server.url)];
    for (const client of [leaving, idle]) {
      client.ask({ ...addressed, ...WEBSOCKET });
      await client.sees(/^HTTP\/1\.1 101/);
    }
    leaving.socket.write(Buffer.alloc(2 ** 20));
    await new Promise((resolve) => setTimeout(resolve, 100));
    leaving.socket.destroy();
    const [left, kept] = tunnels;
    assert.ok(left && kept);
    await once(left, "close", { signal: AbortSignal.timeout(PATIENCE_MS) });
    assert.equal(kept.destroyed || idle.socket.destroyed, false);
    idle.socket.destroy();
  });

  it("ends its half of a tunnel: a slow client gets all that it has sent, and then the end", async () => {
    const body = "x".repeat(16 * 2 ** 20);
    answer = (connection) => {
      connection.write(SWITCHED);
      connection.end(body);
    };
    const client = new Client(server.url);
    client.ask({ ...addressed, ...WEBSOCKET });
    await once(client.socket, "data");
    client.socket.pause();
    await new Promise((resolve) => setTimeout(resolve, 1_500));
    client.socket.resume();
    assert.ok((await client.ends()).endsWith(`\r\n\r\n${body}`));
    await stillServes();
  });

  it("answers an upgrade at length, and is not read faster than its client reads", async () => {
    const body = "x".repeat(4 * 2 ** 20);
    answer = (connection) =>
      connection.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
    const client = new Client(server.url);
    client.ask({ ...addressed, ...WEBSOCKET });
    await once(client.socket, "data");
    client.socket.pause();
    await new Promise((resolve) => setTimeout(resolve, 100));
    client.socket.resume();
    assert((await client.ends()).endsWith(`\r\n\r\n${body}`));
  });

  it("answers an upgrade at length to clients that leave at any moment of it", async () => {
    const body = "x".repeat(2 ** 20);
    answer = (connection) => {
      connection.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n`);
      connection.write(body);
    };
    for (let round = 0; round < 30; round++) {
      const client = new Client(server.url);
      client.ask({ ...addressed, ...WEBSOCKET });
      if (round % 3 > 0) await once(client.socket, "data");
      if (round % 3 === 1) client.socket.destroy();
      else (client.socket as Socket).resetAndDestroy();
    }
    await stillServes();
  });

  it("gets no credentials of this server, and every other header as its client wrote it", async () => {
    const headers = {
      ...addressed,
      "X-API-Key": "e2b_secret",
      "X-Access-Token": "secret",
      "E2B-Traffic-Access-Token": "secret",
      "Proxy-Authorization": "Basic secret",
      "Authorization": "Bearer of-the-program",
      "X-My-Header": "Mine",
      "x-lower": "1",
      "X-LOWER": "2",
    };
    for (const more of [{ Connection: "close" }, WEBSOCKET]) {
      requests = [];
      const client = new Client(server.url);
      client.ask({ ...headers, ...more });
      await client.ends();
      const [request = ""] = requests;
      assert(!request.includes("secret"), request);
      assert.match(request, /\r\nHost: localhost\r\n/);
      assert.match(request, /\r\nAuthorization: Bearer of-the-program\r\n/);
      assert.match(request, /\r\nX-My-Header: Mine\r\n/);
      assert.match(request, /\r\nx-lower: 1\r\nX-LOWER: 2\r\n/);
      assert.match(request, /\r\nX-Forwarded-For: /);
    }
  });
});
