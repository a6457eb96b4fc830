import assert from "node:assert/strict";
import { registerHooks } from "node:module";
import { it } from "node:test";
import type { Logger } from "@coppice/core";
import { openTransport } from "./zmtp-channels.js";
import { ampleRoom } from "../testing/ample-room.js";

const SHELL = 1;

/** Ports that were dialled for sent messages, and the lines that were logged at the start of the transport. */
async function dialled(kind: "zeromq" | "zmtp", address: string | undefined) {
  const ports: number[] = [];
  const logged: string[] = [];
  const log = { info: (_: unknown, message: string) => logged.push(message) } as unknown as Logger;
  const open = await openTransport(kind, log);
  const channels = open({
    ports: { shell: SHELL, control: 2, stdin: 3, iopub: 4 },
    address,
    dial: async (port) => {
      ports.push(port);
      throw new Error("nobody listens");
    },
    identity: "kernel",
    maxMessageBytes: 1_000_000,
    held: ampleRoom(),
    onLost: () => undefined,
  });
  const next = channels.receive("shell")[Symbol.asyncIterator]().next();
  await channels.close();
  assert.equal((await next).done, true);
  return { ports, logged };
}

it("where the library does not run our own client serves all kernels, with a log line", async () => {
  // This test is the first of the file: a module is loaded only once.
  const hooks = registerHooks({
    resolve(specifier, context, resolve) {
      if (specifier.endsWith("zeromq-channels.js")) throw new Error("built for another system");
      return resolve(specifier, context);
    },
  });
  try {
    const { ports, logged } = await dialled("zeromq", "127.0.0.1");
    assert.deepEqual(ports, [SHELL]);
    assert.match(logged.join("\n"), /does not run here/);
  } finally {
    hooks.deregister();
  }
});

it("the library serves kernels that have an address; others are dialled", async () => {
  assert.deepEqual(await dialled("zeromq", "127.0.0.1"), { ports: [], logged: [] });
  assert.deepEqual(await dialled("zeromq", undefined), { ports: [SHELL], logged: [] });
  assert.deepEqual(await dialled("zmtp", "127.0.0.1"), { ports: [SHELL], logged: [] });
});
