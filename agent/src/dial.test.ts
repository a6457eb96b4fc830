import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { type AddressInfo, type Server, type Socket, createServer } from "node:net";
import { buffer, text } from "node:stream/consumers";
import { after, before, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { SandboxError } from "@coppice/core";
import type { AgentConnection } from "./agent-connection.js";
import { startHostAgent } from "./start-host-agent.js";
import { withoutBinary } from "./testing/agent-kinds.js";

const never = new AbortController().signal;

async function listen(host: string, serve: (socket: Socket) => void): Promise<[Server, number]> {
  const server = createServer({ allowHalfOpen: true }, serve);
  server.listen(0, host);
  await once(server, "listening");
  return [server, (server.address() as AddressInfo).port];
}

describe("a connection inside", { skip: withoutBinary }, () => {
  let agent: AgentConnection;

  before(async () => {
    agent = await startHostAgent();
  });

  after(() => agent.close());

  it("carries data both ways on both loopback addresses, and closes one direction first", async () => {
    for (const host of ["127.0.0.1", "::1"]) {
      const [server, port] = await listen(host, (socket) => {
        text(socket).then(
          (received) => socket.end(received.split("").reverse().join("")),
          () => undefined,
        );
      });
      const stream = await agent.dial(port, never);
      stream.end("desrever");
      assert.equal(await text(stream), "reversed");
      server.close();
      await once(server, "close");
    }
  });

  it("is refused where no process listens, and can be aborted", async () => {
    const refused = await agent.dial(1, never).catch((error: unknown) => error);
    assert.ok(refused instanceof SandboxError);
    assert.equal(refused.code, "failed_precondition");
    await assert.rejects(agent.dial(1, AbortSignal.abort(new Error("not wanted"))), /not wanted/);
    await assert.rejects(agent.dial(70_000, never), /no port/);
  });

  it("carries megabytes unchanged, both ways at once", async () => {
    const [server, port] = await listen("127.0.0.1", (socket) => socket.pipe(socket));
    const blob = randomBytes(8 * 2 ** 20);
    const stream = await agent.dial(port, never);
    const received = buffer(stream);
    stream.end(blob);
    assert.ok((await received).equals(blob), "the bytes differ");
    server.close();
    await once(server, "close");
  });

  it("applies backpressure in both directions", async () => {
    let accepted: Socket | undefined;
    const [server, port] = await listen("127.0.0.1", (socket) => {
      accepted = socket;
      socket.on("error", () => undefined);
      socket.pause();
    });
    const stream = await agent.dial(port, never);
    stream.on("error", () => undefined);
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
    await sleep(300);
    const before = taken;
    await sleep(200);
    assert.equal(taken, before, "it goes on without a reader");
    assert.ok(taken < 32 * 2 ** 20);
    stream.destroy();
    accepted?.destroy();
    server.close();
    await once(server, "close");
  });

  it("closes its socket when it is aborted", async () => {
    const gone = Promise.withResolvers<void>();
    const [server, port] = await listen("127.0.0.1", (socket) => {
      for (const event of ["end", "error"]) socket.once(event, () => (socket.destroy(), gone.resolve()));
      socket.resume();
    });
    const stream = await agent.dial(port, never);
    stream.on("error", () => undefined);
    const watchdog = setTimeout(() => gone.reject(new Error("its other end never learns of it")), 20_000);
    stream.destroy();
    await gone.promise;
    clearTimeout(watchdog);
    server.close();
    await once(server, "close");
  });

  it("ends when the other side resets it", async () => {
    const [server, port] = await listen("127.0.0.1", (socket) => {
      socket.once("data", () => socket.resetAndDestroy());
    });
    const stream = await agent.dial(port, never);
    stream.on("error", () => undefined);
    stream.write("x");
    stream.resume();
    await once(stream, "end");
    stream.destroy();
    server.close();
    await once(server, "close");
  });
});
