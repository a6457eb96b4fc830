import assert from "node:assert/strict";
import { text } from "node:stream/consumers";
import type { ConformanceCase } from "./conformance-case.js";

const never = new AbortController().signal;

const ECHO_SERVER = `
import socket, sys
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen()
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
received = b""
while data := connection.recv(65536):
    received += data
connection.sendall(received[::-1])
connection.close()
`;

/** How the server reaches ports of a sandbox. */
export const networkCases: readonly ConformanceCase[] = [
  {
    name: "a port on which nothing listens is refused",
    group: "network",
    async run(context) {
      await context.refuses(context.sandbox.dial(1, never), "failed_precondition");
    },
  },
  {
    name: "a dial that is aborted rejects",
    group: "network",
    async run(context) {
      await assert.rejects(context.sandbox.dial(1, AbortSignal.abort(new Error("not wanted"))));
    },
  },
  {
    name: "a server on a loopback address of the sandbox can be dialled, both ways and with half-close",
    group: "network",
    async run(context) {
      await context.requireProgram("python3");
      const server = await context.startProgram("python3", ["-c", ECHO_SERVER]);
      const { value } = await server.output[Symbol.asyncIterator]().next();
      const port = Number(Buffer.from(value?.data ?? []).toString());
      const stream = await context.sandbox.dial(port, never);
      stream.end(Buffer.from("desrever"));
      assert.equal(await context.within(5_000, "the answer", text(stream)), "reversed");
      assert.deepEqual(await server.exit, { code: 0 });
    },
  },
];
