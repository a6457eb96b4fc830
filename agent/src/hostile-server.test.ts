import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:net";
import type { AddressInfo, Socket } from "node:net";
import { describe, it, type TestContext } from "node:test";
import { FrameReader } from "./wire/frame-reader.js";
import {
  type Frame,
  frameHeader,
  INPUT_WINDOW_BYTES,
  MAGIC,
  PAYLOAD_LIMIT,
  PayloadWriter,
  Reply,
  Request,
  VERSION,
} from "./wire/frames.js";
import { writeSpawnRequest } from "./wire/spawn-request.js";
import { withoutBinary } from "./testing/agent-kinds.js";
import { type ListeningAgent, startListeningAgent } from "./testing/listening-agent.js";
import { env } from "./testing/run.js";

/** Limit of connections to ports inside, see agent/native/dial.c. */
const DIALS_LIMIT = 1024;
const SELF = 0;
const NUMBERS = 2;

/** A server without the restraint of our own connection. */
class RawServer {
  readonly #agent: ListeningAgent;
  readonly #socket: Socket;
  readonly #frames: Frame[] = [];
  #hasEnded = false;
  #changed = Promise.withResolvers<void>();

  private constructor(agent: ListeningAgent, socket: Socket) {
    this.#agent = agent;
    this.#socket = socket;
    const reader = new FrameReader();
    const changed = (): void => {
      this.#changed.resolve();
      this.#changed = Promise.withResolvers<void>();
    };
    socket.on("error", () => undefined);
    socket.on("data", (chunk: Buffer) => {
      this.#frames.push(...reader.push(chunk));
      changed();
    });
    socket.once("close", () => {
      this.#hasEnded = true;
      changed();
    });
    this.say(Request.Hello, 0, new PayloadWriter().u32(MAGIC).u16(VERSION));
  }

  static async connect(context: TestContext): Promise<RawServer> {
    const agent = await startListeningAgent();
    context.after(() => agent[Symbol.asyncDispose]());
    const server = new RawServer(agent, await agent.socket());
    context.after(() => void server.#socket.destroy());
    return server;
  }

  say(type: number, id: number, payload: PayloadWriter | Uint8Array = Buffer.alloc(0)): void {
    const bytes = payload instanceof PayloadWriter ? payload.finish() : payload;
    this.#socket.write(Buffer.concat([frameHeader(type, id, bytes.byteLength), bytes]));
  }

  /** Starts a shell script with this much output credit. */
  run(id: number, script: string, creditBytes: number): void {
    const request = { path: "/bin/sh", args: ["-c", script], env, cwd: "/" };
    this.say(Request.Spawn, id, writeSpawnRequest(request, creditBytes));
  }

  async hears(type: number, id: number): Promise<Buffer> {
    for (;;) {
      const index = this.#frames.findIndex((frame) => frame.type === type && frame.id === id);
      if (index >= 0) return this.#frames.splice(index, 1)[0]?.payload ?? Buffer.alloc(0);
      assert.ok(!this.#hasEnded, `the agent left before frame ${type} of ${id}`);
      await this.#changed.promise;
    }
  }

  /** Waits until the agent has dropped this server and serves the next one. */
  async isLeft(): Promise<void> {
    while (!this.#hasEnded) await this.#changed.promise;
    await (await this.#agent.connect()).close();
    assert.equal(this.#agent.child.exitCode ?? this.#agent.child.signalCode, null);
  }
}

/** A server that reads nothing, and sends so many bytes and an end. @returns its port */
async function listening(context: TestContext, sentBytes = 0): Promise<number> {
  const sockets = new Set<Socket>();
  const server = createServer({ pauseOnConnect: true, allowHalfOpen: true }, (socket) => {
    sockets.add(socket.on("error", () => undefined));
    if (sentBytes > 0) socket.end(Buffer.alloc(sentBytes));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  context.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return (server.address() as AddressInfo).port;
}

const dialOf = (port: number, creditBytes = 1000) => new PayloadWriter().u16(port).u32(creditBytes);

describe("an agent whose server violates the protocol", { skip: withoutBinary, timeout: 20_000 }, () => {
  it("drops one that sends a process more than its window", async (context) => {
    const server = await RawServer.connect(context);
    server.run(1, "sleep 100", 1000);
    await server.hears(Reply.Started, 1);
    // The script reads nothing, and the pipe takes 64 KiB.
    for (let sent = 0; sent <= 2 * INPUT_WINDOW_BYTES; sent += PAYLOAD_LIMIT) {
      server.say(Request.Input, 1, Buffer.alloc(PAYLOAD_LIMIT));
    }
    await server.isLeft();
  });

  it("drops one that sends a connection more than its window", async (context) => {
    const server = await RawServer.connect(context);
    server.say(Request.Dial, 1, dialOf(await listening(context)));
    await server.hears(Reply.Done, 1);
    for (let sent = 0; sent < 64 * INPUT_WINDOW_BYTES; sent += PAYLOAD_LIMIT) {
      server.say(Request.Input, 1, Buffer.alloc(PAYLOAD_LIMIT));
    }
    await server.isLeft();
  });

  it("drops one that names a relative path, or the reserved id", async (context) => {
    const bad = [
      new PayloadWriter().u8(SELF).text("etc/passwd"),
      ...[
        [2 ** 32 - 1, 1],
        [1, 2 ** 32 - 1],
      ].map(([uid = 0, gid = 0]) => new PayloadWriter().u8(NUMBERS).u32(uid).u32(gid).u16(0).text("/etc")),
    ];
    for (const payload of bad) {
      const server = await RawServer.connect(context);
      server.say(Request.Stat, 1, payload);
      await server.isLeft();
    }
  });

  it("caps excessive credit", async (context) => {
    const server = await RawServer.connect(context);
    const all = new PayloadWriter().u32(2 ** 32 - 1).finish();
    server.run(1, "read line; head -c 5000 /dev/zero", 10);
    await server.hears(Reply.Started, 1);
    server.say(Request.Credit, 1, all);
    server.say(Request.Input, 1, Buffer.from("\n"));
    await server.hears(Reply.OutputEnd, 1);

    server.say(Request.Dial, 2, dialOf(await listening(context, 5000), 10));
    await server.hears(Reply.Done, 2);
    server.say(Request.Credit, 2, all);
    await server.hears(Reply.OutputEnd, 2);
  });

  it("allows connections to ports up to its limit", async (context) => {
    const server = await RawServer.connect(context);
    const port = await listening(context);
    for (let id = 1; id <= DIALS_LIMIT + 1; id++) server.say(Request.Dial, id, dialOf(port));
    await server.hears(Reply.Error, DIALS_LIMIT + 1);
    await server.hears(Reply.Done, DIALS_LIMIT);
  });
});
