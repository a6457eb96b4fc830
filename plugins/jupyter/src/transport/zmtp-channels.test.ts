import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { describe, it } from "node:test";
import type { ChannelName } from "./kernel-channels.js";
import { ZmtpChannels } from "./zmtp-channels.js";
import { zmtpGreeting, zmtpMessage, ZmtpReader } from "./zmtp.js";
import { ampleRoom } from "../testing/ample-room.js";
import { MemoryRoom } from "@coppice/core";

const READY = Buffer.from([4, 6, 5, ...Buffer.from("READY")]);

/** The kernel's side of one channel, and channels that are connected to it. */
async function startPeer(held = ampleRoom()) {
  const connections: Socket[] = [];
  /** Our ends of them. */
  const dialled: Socket[] = [];
  const server = createServer((socket) => {
    socket.on("error", () => undefined);
    connections.push(socket);
    server.emit("connected");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const lost: ChannelName[] = [];
  const channels = new ZmtpChannels({
    ports: { shell: port, control: 1, stdin: 1, iopub: port },
    dial: async (to) => {
      if (to === 1) throw new Error("nobody listens");
      const socket = connect(to, "127.0.0.1");
      await once(socket, "connect");
      dialled.push(socket);
      return socket;
    },
    identity: "me",
    maxMessageBytes: 1_000_000,
    held,
    onLost: (channel) => lost.push(channel),
  });
  return {
    channels,
    lost,
    dialled,
    async connection(index: number): Promise<Socket> {
      while (connections.length <= index) await once(server, "connected");
      return connections[index] as Socket;
    },
    async [Symbol.asyncDispose]() {
      await channels.close();
      for (const socket of connections) socket.destroy();
      server.close();
      await once(server, "close");
    },
  };
}

/** Collects everything that arrives from now on. */
function listen(socket: Socket): { readonly said: string[]; until(what: string): Promise<void> } {
  const reader = new ZmtpReader({ maxMessageBytes: 1_000_000 });
  const said: string[] = [];
  socket.on("data", (chunk) => {
    for (const event of reader.read(chunk)) {
      if (event.kind === "message") said.push(event.frames.join("|"));
      else said.push(event.kind === "command" ? event.name : event.kind);
    }
    socket.emit("said");
  });
  return {
    said,
    async until(what) {
      while (!said.includes(what)) await once(socket, "said");
    },
  };
}

describe("channels over ZMTP", () => {
  it("send nothing but the handshake before the kernel is ready", async () => {
    await using peer = await startPeer();
    const received = peer.channels.receive("iopub")[Symbol.asyncIterator]();
    const first = received.next();
    const socket = await peer.connection(0);
    const heard = listen(socket);
    socket.write(zmtpGreeting());
    await heard.until("READY");
    assert.deepEqual(heard.said, ["greeting", "READY"]);
    socket.write(READY);
    await heard.until("\u0001");
    socket.write(Buffer.concat(zmtpMessage([Buffer.from("one"), Buffer.from("two")])));
    assert.deepEqual((await first).value?.map(String), ["one", "two"]);
  });

  it("reconnect, and send the messages of the meantime", async () => {
    await using peer = await startPeer();
    const next = peer.channels.receive("shell")[Symbol.asyncIterator]().next();
    const sent = peer.channels.send("shell", [Buffer.from("waits")]);
    const broken = await peer.connection(0);
    broken.end("HTTP/1.1 400 Bad Request\r\n".repeat(4));
    const socket = await peer.connection(1);
    assert.deepEqual(peer.lost, ["shell"]);
    const heard = listen(socket);
    socket.write(zmtpGreeting());
    socket.write(READY);
    await Promise.all([sent, heard.until("waits")]);
    // The answer to a PING carries the context of the PING.
    socket.write(Buffer.from([4, 8, 4, ...Buffer.from("PING"), 0, 1, 7]));
    await heard.until("PONG");
    await peer.channels.close();
    assert.equal((await next).done, true);
  });

  it("leave nothing at a connection that was full", async () => {
    await using peer = await startPeer();
    void peer.channels.receive("shell")[Symbol.asyncIterator]().next();
    const socket = await peer.connection(0);
    const heard = listen(socket);
    socket.write(zmtpGreeting());
    socket.write(READY);
    const counts: number[] = [];
    for (let round = 0; round < 20; round++) {
      await peer.channels.send("shell", [Buffer.alloc(900_000, "x")]);
      const events = ["drain", "close", "error"] as const;
      counts.push(...events.map((event) => peer.dialled[0]?.listenerCount(event) ?? 0));
    }
    await heard.until("x".repeat(900_000));
    assert.deepEqual(counts.slice(-3), counts.slice(0, 3));
  });

  it("end at once when they are closed, with unsent messages", async () => {
    await using peer = await startPeer();
    const ends = (["shell", "control", "stdin", "iopub"] as const).map((name) =>
      peer.channels.receive(name)[Symbol.asyncIterator]().next(),
    );
    const waiting = peer.channels.send("control", [Buffer.from("never")]);
    const socket = await peer.connection(1);
    socket.resume();
    const gone = once(socket, "close");
    await peer.channels.close();
    await assert.rejects(waiting, /closed/);
    await assert.rejects(peer.channels.send("shell", [Buffer.from("late")]), /closed/);
    assert.ok((await Promise.all(ends)).every(({ done }) => done === true));
    await gone;
    assert.deepEqual(peer.lost, []);
  });

  it("do not read on without a reader", async () => {
    await using peer = await startPeer();
    const received = peer.channels.receive("iopub")[Symbol.asyncIterator]();
    const first = received.next();
    const socket = await peer.connection(0);
    socket.write(zmtpGreeting());
    socket.write(READY);
    const message = Buffer.concat(zmtpMessage([Buffer.alloc(500_000)]));
    // Far more than the buffers of the system hold.
    const sent = 150;
    for (let index = 0; index < sent; index++) socket.write(message);
    await first;
    void peer.channels.receive("shell")[Symbol.asyncIterator]().next();
    const other = await peer.connection(1);
    const heard = listen(other);
    other.write(zmtpGreeting());
    await heard.until("READY");
    other.write(READY);
    // Long enough to read all of it.
    for (let round = 1; round <= 200; round++) {
      other.write(Buffer.from([4, 8, 4, ...Buffer.from("PING"), 0, 1, 7]));
      while (heard.said.filter((what) => what === "PONG").length < round) await once(other, "said");
    }
    assert.ok(
      socket.writableLength > 30_000_000,
      `the kernel has ${socket.writableLength} bytes left to send`,
    );
    for (let taken = 1; taken < sent; taken++) assert.equal((await received.next()).done, false);
  });

  it("count what a kernel does not read of what it is sent, however small its pieces are", async () => {
    let ends = 0;
    const room = new MemoryRoom(4 * 2 ** 20);
    await using peer = await startPeer(
      room.open({ tenant: "t", sandbox: "s", giveUp: () => void (ends += 1) }),
    );
    // Never ready, so everything waits.
    const waiting = Array.from({ length: 80 }, () => peer.channels.send("shell", [Buffer.alloc(50_000)]));
    for (const each of waiting) each.catch(() => undefined);
    assert.equal(ends, 0);
    waiting.push(...Array.from({ length: 10 }, () => peer.channels.send("shell", [Buffer.alloc(50_000)])));
    for (const each of waiting) each.catch(() => undefined);
    assert.equal(ends, 1);
  });
});
