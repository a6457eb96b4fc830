import assert from "node:assert/strict";
import { Agent, type ClientRequest, type IncomingMessage, request } from "node:http";
import type { Duplex } from "node:stream";
import { after, before, describe, it } from "node:test";
import { definePlugin } from "@coppice/core";
import { memoryBackend, type SeededRandom, startTestServer, type TestServer } from "@coppice/core/testing";
import { fuzz, mutilated, withoutGrowth } from "../../harness/host/fuzz.js";

const PORT = 8080;
const ROUNDS = 400;
/**
 * Time after which a program with half of an answer hangs up; otherwise each round would wait for the idle time-
 * out.
 */
const HANG_UP_MS = 30;
const OWN = "the server's own answer";

const STATUS_LINES = [
  "HTTP/1.1 200 OK",
  "HTTP/1.1 204 No Content",
  "HTTP/1.1 304 Not Modified",
  "HTTP/1.1 404",
  "HTTP/1.1 500 O\x01K",
  "HTTP/1.1 099 Low",
  "HTTP/1.1 600 High",
  "HTTP/1.1 999 Highest",
  "HTTP/1.1 100 Continue",
  "HTTP/1.1 101 Switching Protocols",
  "HTTP/1.1 103 Early Hints",
  "HTTP/1.0 200 OK",
  "HTTP/2.0 200 OK",
  "HTTP/1.1 200 \xff\xfe",
  "ICY 200 OK",
  "",
] as const;
const HEADERS = [
  "Content-Length: 4",
  "Content-Length: 0",
  "Content-Length: 99999999999",
  "Content-Length: -1",
  "Transfer-Encoding: chunked",
  "Transfer-Encoding: gzip, chunked",
  "Transfer-Encoding: identity",
  "Connection: close",
  "Connection: keep-alive",
  "Connection: Upgrade\r\nUpgrade: websocket",
  "Trailer: X-After",
  "Set-Cookie: a=b\r\nSet-Cookie: c=d",
  "X-Request-Id: mine",
  "x: \x01",
  "x\x01: y",
  "X-Long: " + "y".repeat(9000),
  " folded: yes",
  "no colon",
  "Location: \r\n\tnext",
  "Date: never",
] as const;
const BODIES = [
  "",
  "body",
  "4\r\nbody\r\n0\r\n\r\n",
  "4\r\nbody\r\n0\r\nX-After: 1\r\n\r\n",
  "zz\r\nbody",
  "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL",
];

function pick<T>(random: SeededRandom, from: readonly T[]): T {
  return from[random.below(from.length)] as T;
}

function someAnswer(random: SeededRandom): Buffer {
  const heads = Array.from({ length: 1 + random.below(2) }, () => {
    const headers = Array.from({ length: random.below(5) }, () => `${pick(random, HEADERS)}\r\n`);
    return `${pick(random, STATUS_LINES)}\r\n${headers.join("")}\r\n${pick(random, BODIES)}`;
  });
  const bytes = Buffer.from(heads.join(""), "latin1");
  return random.below(3) === 0 ? mutilated(random, bytes) : bytes;
}

describe("answers of programs in sandboxes, fuzzed", { timeout: 240_000 }, () => {
  /** Answers by path, since rounds run concurrently. */
  const answers = new Map<string, Buffer>();
  let server: TestServer;
  let addressed: Record<string, string>;

  before(async () => {
    const program = (connection: Duplex): void => {
      let text = "";
      connection.on("error", () => undefined);
      connection.on("data", (data: Buffer) => {
        text += data.toString("latin1");
        if (!text.includes("\r\n\r\n")) return;
        const answer = answers.get(/^\S+ (\S+)/.exec(text)?.[1] ?? "");
        text = "";
        if (answer === undefined) return;
        setImmediate(() => connection.write(answer));
        setTimeout(() => connection.end(), HANG_UP_MS);
      });
    };
    const own = definePlugin({
      name: "own",
      setup(plugin) {
        plugin.http("api").get("/own", (ctx) => {
          ctx.body = OWN;
        });
      },
    });
    server = await startTestServer({ plugins: [[memoryBackend({ ports: { [PORT]: program } }), {}], [own]] });
    const { record } = await server.sandboxes.create({
      template: "base",
      timeoutMs: undefined,
      secure: false,
    });
    addressed = { "e2b-sandbox-id": record.id, "e2b-sandbox-port": String(PORT) };
  });
  after(() => server.stop());

  /**
   * Reads an answer with Node's own client, which must be able to parse it.
   * @returns its text; undefined where the connection closed before its end, or became a tunnel.
   */
  async function exchanged(asked: ClientRequest): Promise<string | undefined> {
    const { promise, resolve, reject } = Promise.withResolvers<string | undefined>();
    const broken = (error: NodeJS.ErrnoException): void => {
      if (error.code?.startsWith("HPE_")) reject(error);
      else resolve(undefined);
    };
    asked.once("error", broken);
    asked.once("upgrade", (_response, socket) => {
      socket.on("error", () => undefined).destroy();
      resolve(undefined);
    });
    asked.once("response", (response: IncomingMessage) => {
      let text = "";
      response.on("data", (data: Buffer) => (text += data.toString("latin1")));
      response.once("end", () => resolve(text)).once("error", broken);
    });
    asked.end();
    return promise;
  }

  let rounds = 0;
  async function round(random: SeededRandom): Promise<void> {
    const path = `/${(rounds += 1)}`;
    const agent = new Agent({ keepAlive: true, maxSockets: 1 });
    try {
      for (let turn = 0; turn < 3; turn++) {
        const answer = someAnswer(random);
        answers.set(path, answer);
        const method = pick(random, ["GET", "HEAD", "POST", "DELETE"]);
        const isUpgrade = method === "GET" && random.below(2) === 0;
        const headers = { ...addressed, ...(isUpgrade && { connection: "Upgrade", upgrade: "websocket" }) };
        await exchanged(request(`${server.url}${path}`, { agent, method, headers }));
        // The next request, on the same connection if it is still open, must get its own answer only.
        const own = await exchanged(request(`${server.url}/own`, { agent }));
        assert.equal(
          own ?? (await exchanged(request(`${server.url}/own`, { agent }))),
          OWN,
          answer.toString("latin1"),
        );
      }
    } finally {
      answers.delete(path);
      agent.destroy();
    }
  }

  it("leave a server that serves, and connections on which the next answer is the right one", async () => {
    await fuzz(ROUNDS, round);
  });

  it("leave nothing behind", async () => {
    await withoutGrowth(() => fuzz(ROUNDS / 4, round));
  });
});
