import assert from "node:assert/strict";
import { test } from "node:test";
import { openTransport } from "./transport.js";

/** Ports of channels that are opened and closed again, as far as they were dialled. */
async function dialled(kind: "zeromq" | "zmtp", address: string | undefined): Promise<readonly number[]> {
  const ports: number[] = [];
  const open = await openTransport(kind);
  const channels = open({
    ports: { shell: 1, control: 2, stdin: 3, iopub: 4 },
    address,
    dial: async (port) => {
      ports.push(port);
      throw new Error("nobody listens");
    },
    identity: "kernel",
    maxMessageBytes: 1_000_000,
    onLost: () => undefined,
  });
  const next = channels.receive("iopub")[Symbol.asyncIterator]().next();
  await channels.close();
  assert.equal((await next).done, true);
  return ports;
}

test("the library speaks to kernels that have an address, and to no others, which are dialled", async () => {
  assert.deepEqual(await dialled("zeromq", "127.0.0.1"), []);
  assert.deepEqual(await dialled("zeromq", undefined), [4]);
  assert.deepEqual(await dialled("zmtp", "127.0.0.1"), [4]);
});
