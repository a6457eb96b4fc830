import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { get, type IncomingMessage } from "node:http";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import type { LiveSandbox } from "@coppice/core";
import { eventually, SeededRandom, startTestServer, type TestServer } from "@coppice/core/testing";
import commands, { Commands } from "@coppice/plugin-commands";
import localProcess from "@coppice/plugin-local-process";
import { WebSocket } from "ws";
import commandsV1 from "../index.js";
import { exitFrame, outputFrame, parseFrame } from "./serve-terminal.js";

/** A client of a terminal, as the contract describes it. */
class Client {
  readonly socket: WebSocket;
  text = "";
  exitCode: number | undefined;
  pings = 0;

  constructor(url: string) {
    this.socket = new WebSocket(url);
    this.socket.on("message", (data: Buffer, isBinary: boolean) => {
      assert.ok(isBinary);
      if (data[0] === 2) this.text += data.subarray(1).toString();
      else if (data[0] === 4) this.exitCode = data.readInt32BE(1);
      else if (data[0] === 5) {
        this.pings += 1;
        this.socket.send(Buffer.of(5));
      } else assert.fail(`frame ${data.toString("hex")}`);
    });
  }

  async open(): Promise<this> {
    await once(this.socket, "open");
    return this;
  }

  type(text: string): void {
    this.socket.send(Buffer.concat([Buffer.of(1), Buffer.from(text)]));
  }

  resize(columns: number, rows: number): void {
    const frame = Buffer.alloc(5);
    frame.writeUInt8(3);
    frame.writeUInt16BE(columns, 1);
    frame.writeUInt16BE(rows, 3);
    this.socket.send(frame);
  }

  async sees(pattern: RegExp): Promise<void> {
    for (let tries = 0; !pattern.test(this.text); tries += 1) {
      assert.ok(tries < 500, `expected ${String(pattern)} in ${JSON.stringify(this.text.slice(-500))}`);
      await delay(20);
    }
  }

  async closed(): Promise<number> {
    if (this.socket.readyState === WebSocket.CLOSED) return 0;
    const [code] = (await once(this.socket, "close")) as [number];
    return code;
  }

  async leave(): Promise<void> {
    this.socket.close();
    await this.closed();
  }
}

describe("terminals of /v1", { timeout: 120_000 }, () => {
  let server: TestServer;
  let sandbox: LiveSandbox;

  before(async () => {
    server = await startTestServer({
      server: { http: { allowedHosts: ["public.example"] } },
      plugins: [
        [commands, {}],
        [
          commandsV1,
          {
            pingInterval: "1s",
            checkInterval: "100ms",
            terminalGrace: "2s",
            scrollback: "4KiB",
            maxTerminals: 4,
            maxSocketsPerSandbox: 6,
          },
        ],
        [localProcess, {}],
      ],
    });
    sandbox = await server.sandboxes.create({ template: "base", timeoutMs: 300_000, secure: false });
  });
  after(() => server.stop());

  const urlOf = (session: string) =>
    `${server.url.replace("http", "ws")}/v1/sandboxes/${sandbox.record.id}/sessions/${encodeURIComponent(session)}`;
  const connect = (session: string) => new Client(urlOf(session)).open();
  const running = () =>
    server
      .resolve(Commands)
      .list(sandbox)
      .filter(({ end }) => end === undefined);
  const unique = () => `my terminal ${randomBytes(4).toString("hex")}`;
  const noneRun = async () => {
    await eventually("no terminal is left", () => running().length === 0);
  };

  it("pass bytes in both directions, take sizes, and say how the shell ended", async () => {
    const client = await connect(unique());
    client.resize(101, 33);
    client.type("stty size; echo $TERM; printf 'a%sb' '\\303\\251'\n");
    await client.sees(/33 101\r\nxterm-256color\r\na.*b/);
    client.type("exit 7\n");
    assert.equal(await client.closed(), 1000);
    assert.equal(client.exitCode, 7);
  });

  it("are not for web pages of other sites, also behind a proxy with a public name, and no shell is started", async () => {
    const ask = async (headers: Readonly<Record<string, string>>) => {
      const socket = new WebSocket(urlOf(unique()), { headers: { host: "public.example", ...headers } });
      const status = await new Promise((resolve) => {
        socket.once("unexpected-response", (_, answer: IncomingMessage) => resolve(answer.statusCode));
        socket.once("open", () => resolve(101));
      });
      socket.on("error", () => undefined);
      socket.terminate();
      return status;
    };
    for (const origin of ["https://evil.example", "null", "https://public.example.evil.example"])
      assert.equal(await ask({ origin }), 403, origin);
    assert.equal(running().length, 0);
    assert.equal(await ask({ origin: "https://public.example" }), 101);
    await noneRun();
  });

  it("are kept for a client that comes back, with the last output, and end without one", async () => {
    const session = unique();
    const first = await connect(session);
    first.type("echo one=$$; seq 5000; echo two=$((1+1))\n");
    await first.sees(/two=2/);
    const [, pid] = /one=(\d+)/.exec(first.text) ?? [];
    await first.leave();
    await delay(200);
    const second = await connect(session);
    await second.sees(/two=2/);
    assert.ok(second.text.length <= 4096 && second.text.includes("4999"), second.text.slice(0, 100));
    second.type("echo again=$$\n");
    await second.sees(new RegExp(`again=${pid}`));
    // Its grace began anew.
    await delay(2_300);
    assert.equal(running().length, 1);
    await second.leave();
    await noneRun();
    const third = await connect(session);
    third.type("echo new=$$\n");
    await third.sees(/new=\d+/);
    assert.doesNotMatch(third.text, new RegExp(`new=${pid}\\b|4999`));
    await third.leave();
    await noneRun();
  });

  it("have several clients, which start one shell together and see the same", async () => {
    const session = unique();
    const clients = await Promise.all([1, 2, 3].map(() => connect(session)));
    assert.equal(running().length, 1);
    clients[0]?.type("echo to=$((40+2))\n");
    for (const client of clients) await client.sees(/to=42/);
    clients[1]?.type("exit\n");
    for (const client of clients) await client.closed();
    assert.deepEqual(
      clients.map(({ exitCode }) => exitCode),
      [0, 0, 0],
    );
  });

  it("are not held by a client that does not read", async () => {
    const session = unique();
    const slow = await connect(session);
    slow.socket.pause();
    const fast = await connect(session);
    fast.type("head -c 20000000 /dev/zero | tr '\\0' x; echo; echo do''ne\n");
    await fast.sees(/done/);
    slow.socket.terminate();
    fast.type("exit\n");
    await fast.closed();
  });

  it("are pinged, and a client that is silent is dropped, not one that answers", async () => {
    const session = unique();
    const [answering, silent] = [await connect(session), new WebSocket(urlOf(session), { autoPong: false })];
    await once(silent, "open");
    silent.on("message", () => undefined);
    await once(silent, "close");
    await eventually("pings", () => answering.pings >= 2);
    assert.equal(answering.socket.readyState, WebSocket.OPEN);
    await answering.leave();
    await noneRun();
  });

  it("end with their sandbox, and are bounded in number", async () => {
    const many = await Promise.all([1, 2, 3, 4].map(() => connect(unique())));
    const fifth = new WebSocket(urlOf(unique()));
    const [refusal] = (await once(fifth, "error")) as [Error];
    assert.match(refusal.message, /429/);
    await server.sandboxes.kill(sandbox.record.id);
    for (const client of many) await client.closed();
    sandbox = await server.sandboxes.create({ template: "base", timeoutMs: 300_000, secure: false });
  });

  it("close for broken frames, ignore texts, and serve on", async () => {
    const session = unique();
    for (const frame of [[], [0], [9, 9], [3], [3, 0, 1, 0], [3, 0, 0, 0, 5], [3, 0, 1, 0, 1, 0]]) {
      const client = await connect(session);
      client.socket.send(Buffer.from(frame));
      assert.equal(await client.closed(), 1007, JSON.stringify(frame));
    }
    await noneRun();
    const large = await connect(unique());
    large.socket.send(Buffer.alloc(70_000, 1));
    assert.equal(await large.closed(), 1009);
    const client = await connect(unique());
    client.socket.send("text");
    client.type("echo al''ive\n");
    await client.sees(/alive/);
    client.type("exit\n");
    await client.closed();
    for (const name of ["%", "%00", "a".repeat(200)]) {
      const refused = new WebSocket(urlOf("x").replace(/x$/, name));
      const [error] = (await once(refused, "error")) as [Error];
      assert.match(error.message, /40[04]/, name);
    }
  });

  it("are not started by a handshake that is refused", async () => {
    await noneRun();
    const good = { "sec-websocket-version": "13", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==" };
    for (const bad of [{ "sec-websocket-version": "99" }, { "sec-websocket-key": "short" }]) {
      const url = new URL(urlOf(unique()).replace("ws", "http"));
      const headers = { connection: "upgrade", upgrade: "websocket", ...good, ...bad };
      const request = get(url, { headers });
      const [response] = (await once(request, "response")) as [IncomingMessage];
      response.resume();
      assert.equal(response.statusCode, 400);
      assert.equal(running().length, 0);
    }
  });

  it("have tags that no Idempotency-Key can take", async () => {
    const client = await connect("a b");
    const response = await fetch(`${server.url}/v1/sandboxes/${sandbox.record.id}/commands`, {
      method: "POST",
      headers: { "idempotency-key": "v1-session:a" },
      body: JSON.stringify({ argv: ["/bin/sleep", "60"] }),
    });
    assert.equal(response.status, 201);
    await client.leave();
    await eventually("the terminal has ended", () => running().length === 1);
    const [left, ...others] = running();
    assert.deepEqual([left?.request.path, others], ["/bin/sleep", []]);
    await left?.kill("SIGKILL");
    await noneRun();
  });

  it("parse any bytes as a frame or refuse them", () => {
    const random = new SeededRandom(16);
    for (let round = 0; round < 5_000; round += 1) {
      const bytes = Buffer.from(
        random.bytes(random.below(8)).map((byte) => (round % 2 === 0 ? byte : byte % 6)),
      );
      try {
        const frame = parseFrame(bytes);
        assert.ok(["input", "resize", "ping"].includes(frame.type));
      } catch (error) {
        assert.equal((error as { readonly code?: string }).code, "invalid_argument", bytes.toString("hex"));
      }
    }
    assert.deepEqual([...exitFrame(-1)], [4, 255, 255, 255, 255]);
    assert.deepEqual([...outputFrame(Buffer.of(1, 2))], [2, 1, 2]);
  });
});
