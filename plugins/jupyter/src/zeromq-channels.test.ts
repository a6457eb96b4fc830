import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { createServer, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import type { ChannelName } from "./kernel-channels.js";
import { ZeromqChannels } from "./zeromq-channels.js";

/** With four sockets each: more than the 1023 that ZeroMQ allows a process unless it is told otherwise. */
const KERNELS = 300;
const CHANNELS: readonly ChannelName[] = ["shell", "control", "stdin", "iopub"];

test("there are sockets for 300 kernels at once, and nothing is left of them when they are closed", async () => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-zeromq-"));
  const open: ZeromqChannels[] = [];
  try {
    let dialled = 0;
    for (let kernel = 0; kernel < KERNELS; kernel++) {
      open.push(
        await ZeromqChannels.open(directory, {
          ports: { shell: 1, control: 2, stdin: 3, iopub: 4 },
          dial: async () => {
            dialled++;
            throw new Error("nobody listens");
          },
          identity: `kernel ${kernel}`,
          maxMessageBytes: 1_000_000,
          onLost: () => undefined,
        }),
      );
    }
    const ends = open.flatMap((channels) =>
      CHANNELS.map((name) => channels.receive(name)[Symbol.asyncIterator]().next()),
    );
    assert.equal((await readdir(directory)).length, KERNELS * CHANNELS.length);
    while (dialled < KERNELS * CHANNELS.length) await new Promise(setImmediate);
    await Promise.all(open.map((channels) => channels.close()));
    assert.ok((await Promise.all(ends)).every(({ done }) => done === true));
    assert.deepEqual(await readdir(directory), []);
  } finally {
    await Promise.all(open.map((channels) => channels.close()));
    await rm(directory, { recursive: true, force: true });
  }
});

test("ports with an address are connected to without a dial or a file, and the end of a connection is told", async () => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-zeromq-"));
  const server = createServer((socket) => socket.destroy()).listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const lost = new Set<ChannelName>();
  const all = Promise.withResolvers<void>();
  const channels = await ZeromqChannels.open(directory, {
    ports: { shell: port, control: port, stdin: port, iopub: port },
    address: "127.0.0.1",
    dial: () => assert.fail("dialled"),
    identity: "kernel",
    maxMessageBytes: 1_000_000,
    onLost: (channel) => {
      if (lost.add(channel).size === CHANNELS.length) all.resolve();
    },
  });
  try {
    await all.promise;
    assert.deepEqual(await readdir(directory), []);
  } finally {
    await channels.close();
    server.close();
    await rm(directory, { recursive: true, force: true });
  }
});
