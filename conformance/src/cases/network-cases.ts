import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { connect } from "node:net";
import type { Duplex } from "node:stream";
import { buffer, text } from "node:stream/consumers";
import { CaseSkipped, type ConformanceCase } from "../kit/conformance-case.js";
import type { ConformanceContext } from "../kit/conformance-context.js";
import { OutputReader } from "../kit/output-reader.js";
import { expectToWait } from "../kit/slow-reader.js";

const never = new AbortController().signal;
const MEBIBYTE = 2 ** 20;

/**
 * A server on the address in its argument. The first byte of a connection selects the service: `r`everse all, `e`cho,
 * `f`lood, `d`ie.
 */
const SERVER = `
import os, socket, sys, threading
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
try:
    server = socket.socket(family)
    server.bind((sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0))
except OSError as error:
    print("none:", error, flush=True)
    sys.exit()
server.listen(128)

def serve(connection):
    kind = connection.recv(1)
    if kind == b"r":
        received = b""
        while data := connection.recv(65536):
            received += data
        connection.sendall(received[::-1])
    elif kind == b"e":
        while data := connection.recv(65536):
            connection.sendall(data)
    elif kind == b"f":
        written = 0
        while True:
            connection.sendall(bytes(65536))
            written += 64
            with open("written", "w") as file:
                file.write(str(written))
    elif kind == b"d":
        os._exit(0)
    connection.close()

print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    threading.Thread(target=serve, args=(connection,), daemon=True).start()
`;

const python = { program: "python3" } as const;

export const networkCases: readonly ConformanceCase[] = [
  {
    name: "a port on which nothing listens is refused",
    group: "network",
    async run(context) {
      await context.refuses(context.sandbox.dial(1, never), "failed_precondition");
      await context.refuses(
        () => context.sandbox.dial(0, never),
        ["invalid_argument", "failed_precondition"],
      );
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
    needs: [python],
    async run(context) {
      for (const address of ["127.0.0.1", "0.0.0.0"]) {
        const stream = await context.dial(await serve(context, address));
        stream.end(Buffer.from("rdesrever"));
        assert.equal(await context.within(5_000, "the answer", text(stream)), "reversed");
      }
    },
  },
  {
    name: "a sandbox's declared address leads to its ports",
    group: "network",
    needs: [python],
    async run(context) {
      const { address } = context.sandbox;
      if (address === undefined) throw new CaseSkipped("it has none");
      const stream = connect({ host: address, port: await serve(context, "127.0.0.1"), allowHalfOpen: true });
      stream.end("rdesrever");
      assert.equal(await context.within(5_000, "the answer", text(stream)), "reversed");
    },
  },
  {
    name: "a server on the loopback address of version 6 can be dialled",
    group: "network",
    needs: [python],
    async run(context) {
      for (const address of ["::1", "::"]) {
        const stream = await context.dial(await serve(context, address));
        stream.end(Buffer.from("rdesrever"));
        assert.equal(await context.within(5_000, "the answer", text(stream)), "reversed");
      }
    },
  },
  {
    name: "twenty connections at once keep their bytes apart, a mebibyte each way",
    group: "network",
    needs: [python],
    async run(context) {
      const port = await serve(context);
      const exchange = async (): Promise<void> => {
        const stream = await context.dial(port);
        const blob = randomBytes(MEBIBYTE);
        stream.write(Buffer.from("e"));
        stream.end(blob);
        assert.ok((await buffer(stream)).equals(blob), "the bytes differ");
      };
      await context.within(20_000, "the exchange", Promise.all(Array.from({ length: 20 }, exchange)));
    },
  },
  {
    name: "a slow reader of a connection slows its sender",
    group: "network",
    needs: [python],
    async run(context) {
      const stream = await context.dial(await serve(context));
      stream.write(Buffer.from("f"));
      stream.pause();
      await expectToWait(context, {
        // The buffers of the kernel may hold much of it.
        mostKiB: 32_768,
        async writtenKiB() {
          const written = await context.read(context.home("written")).catch(() => Buffer.from("0"));
          return Number(written.toString());
        },
        take: () => nextPiece(stream),
      });
      stream.destroy();
    },
  },
  {
    name: "a slow receiver of a connection slows the server",
    group: "network",
    needs: [python],
    async run(context) {
      const script =
        "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); c, _ = s.accept(); time.sleep(300)";
      const port = await portOf(context, ["-c", script]);
      const stream = await context.dial(port);
      let taken = 0;
      const writing = (async () => {
        while (!stream.destroyed) {
          await new Promise<void>((resolve) => stream.write(Buffer.alloc(65_536), () => resolve()));
          taken += 64;
        }
      })();
      let before = -1;
      await context.until("the server stands still", async () => {
        const last = before;
        before = taken;
        await new Promise((resolve) => setTimeout(resolve, 150));
        return before === last && before > 0;
      });
      assert.ok(before <= 32_768, `${before} KiB were taken that nobody reads`);
      stream.destroy();
      await context.within(2_000, "the write ends", writing);
    },
  },
  {
    name: "a connection ends with the program at its other end",
    group: "network",
    needs: [python],
    async run(context) {
      const stream = await context.dial(await serve(context));
      const closed = closeOf(stream);
      stream.write(Buffer.from("d"));
      await context.within(2_000, "the connection ends", closed);
    },
  },
  {
    name: "a closed connection is noticed by the program at its other end",
    group: "network",
    needs: [python],
    async run(context) {
      const script =
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); c, _ = s.accept()\ntry:\n  while c.recv(100): pass\nexcept OSError: pass\nprint('over', flush=True)";
      const started = await context.startProgram("python3", ["-c", script]);
      const reader = new OutputReader(started);
      const [port] = await reader.sees(/^\d+(?=\n)/);
      const stream = await context.dial(Number(port));
      stream.write(Buffer.from("x"));
      stream.destroy();
      await reader.sees(/over/);
      await reader.end();
    },
  },
  {
    name: "connections end with their sandbox",
    group: "network",
    needs: [python],
    async run(context) {
      const port = await serve(context);
      const streams = await Promise.all([1, 2, 3].map(() => context.dial(port)));
      const closed = Promise.all(streams.map(closeOf));
      for (const stream of streams) stream.write(Buffer.from("e"));
      await context.sandbox.destroy();
      await context.within(2_000, "the connections end", closed);
    },
  },
  {
    name: "two sandboxes may use one port, and each is dialled by its own",
    group: "network",
    needs: ["isolation", python],
    async run(context) {
      const other = await context.provision();
      const script =
        "import socket, sys; s = socket.create_server(('127.0.0.1', 8321)); print(8321, flush=True)\nwhile True: c, _ = s.accept(); c.sendall(sys.argv[1].encode()); c.close()";
      for (const [name, sandbox] of [
        ["one", context.sandbox],
        ["other", other],
      ] as const) {
        await portOf(context, ["-c", script, name], sandbox);
      }
      for (const [name, sandbox] of [
        ["one", context.sandbox],
        ["other", other],
      ] as const) {
        const stream = await context.dial(8321, sandbox);
        assert.equal(await context.within(5_000, "the answer", text(stream)), name);
      }
    },
  },
];

/** Starts the server. Returns its port. @throws CaseSkipped when the sandbox has no such address. */
async function serve(context: ConformanceContext, address = "127.0.0.1"): Promise<number> {
  return portOf(context, ["-c", SERVER, address]);
}

async function portOf(
  context: ConformanceContext,
  args: readonly string[],
  sandbox = context.sandbox,
): Promise<number> {
  const reader = new OutputReader(await context.startProgram("python3", args, { in: sandbox }));
  const [line] = await reader.sees(/^.+(?=\n)/);
  if (line.startsWith("none:")) throw new CaseSkipped(`the sandbox has no address ${args.at(-1) ?? ""}`);
  assert.match(line, /^\d+$/, `no port: ${reader.text}`);
  return Number(line);
}

async function nextPiece(stream: Duplex): Promise<Uint8Array | undefined> {
  for (;;) {
    const piece: unknown = stream.read();
    if (piece instanceof Uint8Array) return piece;
    if (stream.readableEnded || stream.destroyed) return undefined;
    await once(stream, "readable");
  }
}

function closeOf(stream: Duplex): Promise<void> {
  stream.resume();
  return new Promise((resolve) => {
    stream.once("close", () => resolve());
    stream.once("end", () => stream.destroy());
  });
}
