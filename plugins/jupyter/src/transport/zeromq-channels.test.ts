import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type AddressInfo, type Socket } from "node:net";
import { it } from "node:test";
import { MemoryRoom } from "@coppice/core";
import { ampleRoom } from "../testing/ample-room.js";
import type { ChannelName } from "./kernel-channels.js";
import { ZeromqChannels } from "./zeromq-channels.js";

/** Each has four sockets: together more than 1023, the default limit of ZeroMQ for a process. */
const KERNELS = 300;
const CHANNELS: readonly ChannelName[] = ["shell", "control", "stdin", "iopub"];
const ADDRESS = "127.0.0.1";

/** Accepts every connection and never sends anything. */
async function startListener() {
  const connections = new Set<Socket>();
  const server = createServer((socket) => {
    connections.add(socket);
    socket
      .on("error", () => undefined)
      .once("close", () => {
        connections.delete(socket);
        server.emit("changed");
      });
    socket.resume();
    server.emit("changed");
  });
  server.listen(0, ADDRESS);
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  return {
    ports: { shell: port, control: port, stdin: port, iopub: port },
    connections,
    async hasConnections(count: number): Promise<void> {
      while (connections.size !== count) await once(server, "changed");
    },
    async [Symbol.asyncDispose]() {
      for (const socket of connections) socket.destroy();
      server.close();
      await once(server, "close");
    },
  };
}

it("there are sockets for 300 kernels at once, and nothing is left of them when they are closed", async () => {
  await using listener = await startListener();
  const open: ZeromqChannels[] = [];
  const lost: ChannelName[] = [];
  try {
    for (let kernel = 0; kernel < KERNELS; kernel++) {
      open.push(
        new ZeromqChannels({
          ports: listener.ports,
          address: ADDRESS,
          identity: `kernel ${kernel}`,
          maxMessageBytes: 1_000_000,
          held: ampleRoom(),
          onLost: (channel) => lost.push(channel),
        }),
      );
    }
    const ends = open.flatMap((channels) =>
      CHANNELS.map((name) => channels.receive(name)[Symbol.asyncIterator]().next()),
    );
    await listener.hasConnections(KERNELS * CHANNELS.length);
    await Promise.all(open.map((channels) => channels.close()));
    assert.ok((await Promise.all(ends)).every(({ done }) => done === true));
    await listener.hasConnections(0);
    assert.deepEqual(lost, []);
  } finally {
    await Promise.all(open.map((channels) => channels.close()));
  }
});

it("the end of a connection is reported, and another one is made", async () => {
  await using listener = await startListener();
  const lost = new Set<ChannelName>();
  const all = Promise.withResolvers<void>();
  const channels = new ZeromqChannels({
    ports: listener.ports,
    address: ADDRESS,
    identity: "kernel",
    maxMessageBytes: 1_000_000,
    held: ampleRoom(),
    onLost: (channel) => {
      if (lost.add(channel).size === CHANNELS.length) all.resolve();
    },
  });
  try {
    await listener.hasConnections(CHANNELS.length);
    for (const socket of listener.connections) socket.destroy();
    await all.promise;
    await listener.hasConnections(CHANNELS.length);
  } finally {
    await channels.close();
  }
});

it("what a kernel does not read of what it is sent is counted", async () => {
  await using listener = await startListener();
  let ends = 0;
  const channels = new ZeromqChannels({
    ports: listener.ports,
    address: ADDRESS,
    identity: "kernel",
    maxMessageBytes: 1_000_000,
    held: new MemoryRoom(2 ** 20).open({ tenant: "t", sandbox: "s", giveUp: () => void (ends += 1) }),
    onLost: () => undefined,
  });
  try {
    // Nobody answers the handshake, so they stay here.
    const sent = Array.from({ length: 30 }, () => channels.send("shell", [Buffer.alloc(50_000)]));
    const ended = Promise.allSettled(sent);
    assert.equal(ends, 1);
    await channels.close();
    assert.equal((await ended).at(-1)?.status, "rejected");
  } finally {
    await channels.close();
  }
});
