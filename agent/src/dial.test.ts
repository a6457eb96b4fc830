import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { type AddressInfo, type Socket, createServer } from "node:net";
import type { Writable } from "node:stream";
import { buffer, text } from "node:stream/consumers";
import { after, before, describe, it, type TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { SandboxError } from "@coppice/core";
import type { AgentConnection } from "./agent-connection.js";
import { startHostAgent } from "./start-host-agent.js";
import { withoutBinary } from "./testing/agent-kinds.js";

/** The buffers of two sockets and the agent's window are smaller. */
const MOST_UNREAD = 32 * 2 ** 20;
const never = new AbortController().signal;

/** Listens until the test ends, with all connections that were accepted. */
async function listen(t: TestContext, host: string, serve: (socket: Socket) => void): Promise<number> {
  const accepted = new Set<Socket>();
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    accepted.add(socket);
    socket.once("close", () => accepted.delete(socket));
    serve(socket);
  });
  server.listen(0, host);
  await once(server, "listening");
  t.after(async () => {
    for (const socket of accepted) socket.destroy();
    server.close();
    await once(server, "close");
  });
  return (server.address() as AddressInfo).port;
}

/** Writes for as long as the stream takes more. @returns a function that has the number of bytes that were taken. */
function writeOn(stream: Writable): () => number {
  let taken = 0;
  const piece = Buffer.alloc(65_536);
  const write = (): void => {
    stream.write(piece, (error) => {
      if (error) return;
      taken += piece.byteLength;
      write();
    });
  };
  write();
  return () => taken;
}

describe("a connection inside", { skip: withoutBinary }, () => {
  let agent: AgentConnection;

  before(async () => {
    agent = await startHostAgent();
  });

  after(() => agent.close());

  it("carries data both ways on both loopback addresses, and closes one direction first", async (t) => {
    for (const host of ["127.0.0.1", "::1"]) {
      const port = await listen(t, host, (socket) => {
        text(socket).then(
          (received) => socket.end(received.split("").reverse().join("")),
          () => undefined,
        );
      });
      const stream = await agent.dial(port, never);
      stream.end("desrever");
      assert.equal(await text(stream), "reversed");
    }
  });

  it("is refused where no process listens, and can be aborted", async () => {
    const refused = await agent.dial(1, never).catch((error: unknown) => error);
    assert.ok(refused instanceof SandboxError);
    assert.equal(refused.code, "failed_precondition");
    await assert.rejects(agent.dial(1, AbortSignal.abort(new Error("not wanted"))), /not wanted/);
    await assert.rejects(agent.dial(70_000, never), /no port/);
  });

  it("carries megabytes unchanged, both ways at once", async (t) => {
    const port = await listen(t, "127.0.0.1", (socket) => socket.pipe(socket));
    const blob = randomBytes(8 * 2 ** 20);
    const stream = await agent.dial(port, never);
    const received = buffer(stream);
    stream.end(blob);
    assert.ok((await received).equals(blob), "the bytes differ");
  });

  it("applies backpressure in both directions", async (t) => {
    const accepted = Promise.withResolvers<Socket>();
    const port = await listen(t, "127.0.0.1", (socket) => {
      socket.on("error", () => undefined);
      accepted.resolve(socket.pause());
    });
    const stream = await agent.dial(port, never);
    t.after(() => stream.destroy());
    stream.on("error", () => undefined);
    const inward = writeOn(stream);
    const outward = writeOn(await accepted.promise);
    for (let before = -1; before !== inward() + outward();) {
      before = inward() + outward();
      assert.ok(inward() < MOST_UNREAD && outward() < MOST_UNREAD, "it goes on without a reader");
      await sleep(500);
    }
  });

  it("closes its socket when it is aborted", async (t) => {
    const gone = Promise.withResolvers<void>();
    const port = await listen(t, "127.0.0.1", (socket) => {
      for (const event of ["end", "error"]) socket.once(event, () => (socket.destroy(), gone.resolve()));
      socket.resume();
    });
    const stream = await agent.dial(port, never);
    stream.on("error", () => undefined);
    const watchdog = setTimeout(() => gone.reject(new Error("its other end never learns of it")), 20_000);
    t.after(() => clearTimeout(watchdog));
    stream.destroy();
    await gone.promise;
  });

  it("ends when the other side resets it", async (t) => {
    const port = await listen(t, "127.0.0.1", (socket) => {
      socket.once("data", () => socket.resetAndDestroy());
    });
    const stream = await agent.dial(port, never);
    stream.on("error", () => undefined);
    stream.write("x");
    stream.resume();
    await once(stream, "end");
    stream.destroy();
  });
});
