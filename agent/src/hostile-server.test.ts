import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:net";
import type { AddressInfo, Socket } from "node:net";
import { describe, it, type TestContext } from "node:test";
import type { AgentConnection } from "./agent-connection.js";
import { FrameReader } from "./wire/frame-reader.js";
import {
  type Frame,
  FRAME_COST,
  frameHeader,
  INPUT_WINDOW_BYTES,
  MAGIC,
  PAYLOAD_LIMIT,
  PayloadReader,
  PayloadWriter,
  Reply,
  Request,
  VERSION,
} from "./wire/frames.js";
import { type SpawnRequest, writeSpawnRequest } from "./wire/spawn-request.js";
import { withoutBinary } from "./testing/agent-kinds.js";
import { isRunning } from "./testing/is-running.js";
import { type ListeningAgent, startListeningAgent } from "./testing/listening-agent.js";
import { env, finish } from "./testing/run.js";

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
  run(id: number, script: string, creditBytes: number, more: Partial<SpawnRequest> = {}): void {
    const request = { path: "/bin/sh", args: ["-c", script], env, cwd: "/", ...more };
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

  /** The server after this one. */
  next(): Promise<AgentConnection> {
    return this.#agent.connect();
  }

  /** Waits until the agent has dropped this server and serves the next one. */
  async isLeft(): Promise<void> {
    while (!this.#hasEnded) await this.#changed.promise;
    await (await this.next()).close();
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

  it("drops one that names a relative path, one with a NUL or the reserved id, or sends more than a request has", async (context) => {
    const bad = [
      new PayloadWriter().u8(SELF).text("etc/passwd"),
      new PayloadWriter().u8(SELF).text("/etc\0/passwd"),
      new PayloadWriter().u8(SELF).text("/etc").u8(0),
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

  it("signals no group of a process that has ended, whose number may be that of another one", async (context) => {
    const server = await RawServer.connect(context);
    server.run(1, "sleep 100 > /dev/null 2>&1 & echo $!", 1000);
    const left = Number(await server.hears(Reply.Output, 1));
    await server.hears(Reply.Exit, 1);
    server.say(Request.Signal, 1, new PayloadWriter().u8(1).text("SIGKILL"));
    const told = await server.hears(Reply.Signalled, 1);
    assert.equal(new PayloadReader(told).text(), "ESRCH");
    assert.ok(isRunning(left));
    process.kill(left, "SIGKILL");
  });

  it("hands over no input while bytes of it wait, which come first", async (context) => {
    const server = await RawServer.connect(context);
    server.run(1, "sleep 100", 1000);
    // The pipe takes 64 KiB.
    server.say(Request.Input, 1, Buffer.alloc(INPUT_WINDOW_BYTES));
    server.say(Request.Share, 1);
    assert.equal((await server.hears(Reply.Shared, 1)).readInt32LE(), -1);
  });

  it("keeps output until it is paid for, with what its frame costs", async (context) => {
    const server = await RawServer.connect(context);
    server.run(1, "printf one; read line; printf two; read line; printf three; sleep 100", 1000, {
      keepsOutput: true,
    });
    const pay = (bytes: number): void => server.say(Request.Credit, 1, new PayloadWriter().u32(bytes));
    assert.equal(String(await server.hears(Reply.Output, 1)), "one");
    pay("one".length + FRAME_COST);
    for (const word of ["two", "three"]) {
      server.say(Request.Input, 1, Buffer.from("\n"));
      assert.equal(String(await server.hears(Reply.Output, 1)), word);
    }
    pay("two".length + FRAME_COST - 1);
    server.say(Request.Signal, 1, new PayloadWriter().u8(0).text("SIGKILL"));
    await server.hears(Reply.Signalled, 1);
    const next = await server.next();
    const [found] = await next.processes();
    assert.ok(found);
    assert.equal(found.keeping?.offset, "one".length);
    assert.equal(String((await finish(found)).stdout), "twothree");
    await next.close();
  });

  it("allows connections to ports up to its limit", async (context) => {
    const server = await RawServer.connect(context);
    const port = await listening(context);
    for (let id = 1; id <= DIALS_LIMIT + 1; id++) server.say(Request.Dial, id, dialOf(port));
    await server.hears(Reply.Error, DIALS_LIMIT + 1);
    await server.hears(Reply.Done, DIALS_LIMIT);
  });
});
