import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { duplexPair, type Duplex } from "node:stream";
import { describe, it, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { SandboxError } from "@coppice/core";
import { eventually } from "@coppice/core/testing";
import { AgentConnection } from "../agent-connection.js";
import { connectSocket } from "../connect-socket.js";
import { FrameReader } from "./frame-reader.js";
import {
  type Frame,
  HEADER_BYTES,
  MAGIC,
  PAYLOAD_LIMIT,
  PayloadReader,
  PayloadWriter,
  ProtocolError,
  Reply,
  Request,
  Stage,
  VERSION,
  frameHeader,
} from "./frames.js";
import { env } from "../testing/run.js";

/** A seeded generator of random numbers. */
function generator(seed: number): (limit: number) => number {
  let state = BigInt(seed) + 1n;
  return (limit) => {
    state = (state * 6364136223846793005n + 1442695040888963407n) & 0xffff_ffff_ffff_ffffn;
    return Number((state >> 33n) % BigInt(limit));
  };
}

function frame(type: number, id: number, payload: Uint8Array = Buffer.alloc(0)): Buffer {
  return Buffer.concat([frameHeader(type, id, payload.byteLength), payload]);
}

const greeting = frame(Reply.Hello, 0, new PayloadWriter().u32(MAGIC).u16(VERSION).u32(1).finish());
const noProcesses = frame(Reply.ProcessesEnd, 0);

/** A server's connection, and its other end, which a test scripts. */
async function scripted(): Promise<{
  connection: AgentConnection;
  agent: Duplex;
  asked: (type: number) => Promise<number>;
}> {
  const [near, agent] = duplexPair();
  const reader = new FrameReader();
  const frames: Frame[] = [];
  let arrived = Promise.withResolvers<void>();
  agent.on("error", () => undefined);
  agent.on("data", (chunk: Buffer) => {
    frames.push(...reader.push(chunk));
    arrived.resolve();
    arrived = Promise.withResolvers<void>();
  });
  agent.write(Buffer.concat([greeting, noProcesses]));
  const connection = await AgentConnection.open(near);
  const asked = async (type: number): Promise<number> => {
    for (;;) {
      const index = frames.findIndex((each) => each.type === type);
      if (index >= 0) return frames.splice(index, 1)[0]?.id ?? 0;
      await arrived.promise;
    }
  };
  return { connection, agent, asked };
}

function spawnTrue(connection: AgentConnection): ReturnType<AgentConnection["spawn"]> {
  return connection.spawn({ path: "true", args: [], env, cwd: "/" });
}

function isUnavailable(error: unknown): true {
  assert.ok(error instanceof SandboxError, String(error));
  assert.equal(error.code, "unavailable", error.message);
  return true;
}

describe("frames", () => {
  it("are independent of chunk boundaries, and are copies", () => {
    const random = generator(1);
    const sent = Array.from({ length: 300 }, (_, index) => ({
      type: random(256),
      id: random(2 ** 31),
      payload: Buffer.alloc(index % 50 === 0 ? random(PAYLOAD_LIMIT) : random(300), random(256)),
    }));
    const bytes = Buffer.concat(sent.map(({ type, id, payload }) => frame(type, id, payload)));
    for (const largest of [1, 5, 9, 100, 70_000, bytes.byteLength]) {
      const reader = new FrameReader();
      const received: Frame[] = [];
      const chunk = Buffer.alloc(largest);
      // With and without reads of large payloads to their place.
      for (const isAsked of [false, true]) {
        received.length = 0;
        for (let start = 0; start < bytes.byteLength;) {
          const end = Math.min(bytes.byteLength, start + 1 + random(largest));
          // The next chunk reuses the memory.
          const into = (isAsked ? reader.destination() : undefined) ?? chunk;
          const count = bytes.copy(into, 0, start, end);
          received.push(...reader.push(into.subarray(0, count)));
          start += count;
        }
        assert.deepEqual(received, sent, `pieces of up to ${largest} bytes`);
      }
      for (const { payload } of received) {
        if (payload.byteLength < 16_384) continue;
        assert.equal(payload.buffer.byteLength, payload.byteLength, "it shares its memory with others");
      }
    }
  });

  it("have a length that is checked before memory is allocated", () => {
    for (const length of [0, 4, PAYLOAD_LIMIT + HEADER_BYTES - 3, 0xffff_ffff]) {
      const bytes = Buffer.alloc(4);
      bytes.writeUInt32LE(length);
      assert.throws(() => [...new FrameReader().push(bytes)], ProtocolError);
    }
  });

  it("hold exactly the written values", () => {
    const payload = new PayloadWriter()
      .u8(7)
      .u16(65_535)
      .u32(2 ** 32 - 1)
      .u64(2n ** 53n)
      .text("ünï")
      .text("x".repeat(70_000), 4);
    const reader = new PayloadReader(payload.finish());
    assert.deepEqual(
      [reader.u8(), reader.u16(), reader.u32(), reader.u64(), reader.text(), reader.text(4).length],
      [7, 65_535, 2 ** 32 - 1, 2 ** 53, "ünï", 70_000],
    );
    reader.end();
    assert.throws(() => reader.u8(), ProtocolError);
    assert.throws(() => new PayloadReader(Buffer.from([5, 0, 1])).text(), ProtocolError);
    assert.throws(() => new PayloadReader(Buffer.from([1])).end(), ProtocolError);
  });
});

describe("an opened file", () => {
  /** The description of a file of 5 bytes. */
  const info = new PayloadWriter().u8(0).u32(0o644).u32(0o100644).u32(0).u32(0).u64(5n).u64(0n).u32(0);
  const described = info.text("root").text("root").text("").u16(0).finish();

  it("comes with its first bytes, which are asked for at once", async () => {
    const { connection, agent, asked } = await scripted();
    const opening = connection.files.read("/x");
    const id = await asked(Request.Open);
    // Nothing has been answered yet.
    assert.equal(await asked(Request.Read), id);
    agent.write(
      Buffer.concat([frame(Reply.Info, id, described), frame(Reply.Output, id, Buffer.from("01234"))]),
    );
    const file = await opening;
    const all = Buffer.concat(await Array.fromAsync(file.content({ length: 5 })));
    const part = Buffer.concat(await Array.fromAsync(file.content({ offset: 2, length: 2 })));
    assert.deepEqual([all.toString(), part.toString()], ["01234", "23"]);
    await connection.close();
  });

  it("that is missing leaves its id to nobody until both answers have come", async () => {
    const { connection, agent, asked } = await scripted();
    const opening = connection.files.read("/x");
    const id = await asked(Request.Open);
    const missing = frame(
      Reply.Error,
      id,
      new PayloadWriter().u8(Stage.File).text("ENOENT").text("").finish(),
    );
    agent.write(missing);
    await assert.rejects(opening, { code: "not_found" });
    assert.equal(await asked(Request.Release), id);
    agent.write(Buffer.concat([missing, frame(Reply.Released, id)]));
    const next = connection.files.read("/y");
    agent.write(frame(Reply.Info, await asked(Request.Open), described));
    await next;
    await connection.close();
  });
});

describe("output that is read to its place", () => {
  /** Frames of output, large ones often in a row, of less than the first grant in all. */
  function piecesOf(seed: number): Buffer[] {
    const random = generator(seed);
    return Array.from({ length: 24 }, (_, index) => {
      const piece = Buffer.alloc(random(3) > 0 ? 16_000 + random(100_000) : random(3000));
      for (let at = 0; at < piece.length; at++) piece[at] = (at * 7 + index * 31 + seed) % 251;
      return piece;
    });
  }

  it("is that of its own process, also of those before a connection is lost within a frame", async () => {
    const folder = await mkdtemp(join(tmpdir(), "coppice-test-"));
    const path = join(folder, "socket");
    let connections = 0;
    const agents = createServer((agent) => {
      const seed = connections++;
      const random = generator(seed + 100);
      const reader = new FrameReader();
      agent.on("error", () => undefined);
      agent.write(Buffer.concat([greeting, noProcesses]));
      agent.on("data", (chunk: Buffer) => {
        for (const { type, id } of reader.push(chunk)) if (type === Request.Spawn) void answer(id);
      });
      const answer = async (id: number): Promise<void> => {
        const started = frame(Reply.Started, id, new PayloadWriter().u32(1).finish());
        const cut = frame(Reply.Output, id, Buffer.alloc(200_000)).subarray(0, 90_000);
        const pieces = piecesOf(seed).map((piece) => frame(Reply.Output, id, piece));
        const bytes = Buffer.concat([started, ...pieces, cut]);
        for (let at = 0; at < bytes.length;) {
          const end = at + 1 + random(random(2) > 0 ? 20 : 150_000);
          agent.write(bytes.subarray(at, end));
          at = end;
          if (random(2) > 0) await new Promise(setImmediate);
        }
        agent.end();
      };
    });
    await new Promise<void>((resolve) => void agents.listen(path, resolve));
    const open = async (seed: number): Promise<void> => {
      const connection = await AgentConnection.open(await connectSocket(path));
      const { exit, output } = await connection.spawn({ path: "true", args: [], env, keepsOutput: true });
      const got: Uint8Array[] = [];
      for await (const { data, release } of output) {
        const isReleased = got.length % 2 === 0;
        got.push(isReleased ? Uint8Array.from(data) : data);
        if (isReleased) release?.();
      }
      assert.ok((await exit).signal === "SIGKILL");
      assert.ok(connection.isOver);
      assert.ok(
        Buffer.concat(got).equals(Buffer.concat(piecesOf(seed))),
        `connection ${seed} has other bytes`,
      );
    };
    try {
      // Opened one after another, for the agent counts them.
      const all: Promise<void>[] = [];
      for (let seed = 0; seed < 6; seed++) {
        all.push(open(seed));
        await eventually("it is connected", () => connections > seed);
      }
      await Promise.all(all);
    } finally {
      agents.close();
      await rm(folder, { recursive: true });
    }
  });
});

describe("a hostile agent", () => {
  it("that does not greet, or greets wrongly, is disconnected", async () => {
    const wrong = [
      frame(Reply.Hello, 0, new PayloadWriter().u32(1).u16(VERSION).u32(1).finish()),
      frame(Reply.Hello, 0, new PayloadWriter().u32(MAGIC).u16(9).u32(1).finish()),
      frame(Reply.Hello, 0),
      noProcesses,
      Buffer.concat([greeting, greeting]),
      Buffer.concat([greeting, frame(Reply.Exit, 5)]),
      // Those of thousands of processes would stay in memory.
      Buffer.concat([
        greeting,
        frame(Reply.Process, 5, new PayloadWriter().u32(1).u8(0).u32(0).text("x".repeat(4096)).finish()),
        noProcesses,
      ]),
      Buffer.alloc(64, 0xff),
    ];
    for (const bytes of wrong) {
      const [near, agent] = duplexPair();
      agent.on("error", () => undefined);
      agent.write(bytes);
      await assert.rejects(AgentConnection.open(near), isUnavailable);
      assert.ok(near.destroyed);
    }
    const [silent] = duplexPair();
    await assert.rejects(
      AgentConnection.open(silent, { greetingTimeoutMs: 20 }),
      /did not answer within 20 ms/,
    );
    const [closed, other] = duplexPair();
    other.end();
    await assert.rejects(AgentConnection.open(closed), isUnavailable);
  });

  it("loses its connection with an unexpected frame, and all pending requests fail", async () => {
    const exit = new PayloadWriter().u8(0).u8(0).u8(0).text("").finish();
    const u32 = (value: number): Buffer => new PayloadWriter().u32(value).finish();
    const answers: readonly ((id: number) => Buffer)[] = [
      (id) => frame(Reply.Output, id + 99, Buffer.from("for no id")),
      (id) => frame(Reply.Started, id, Buffer.from([1])),
      (id) => frame(Reply.Output, id),
      (id) => frame(0, id),
      (id) => frame(Reply.Error, id, Buffer.from([2, 9])),
      () => Buffer.from("ffffffff", "hex"),
      (id) => Buffer.concat([frame(Reply.Started, id, u32(1)), frame(Reply.Taken, id, u32(1))]),
      (id) => Buffer.concat([frame(Reply.Started, id, u32(1)), frame(Reply.Started, id, u32(1))]),
      (id) =>
        Buffer.concat([
          frame(Reply.Started, id, u32(1)),
          frame(Reply.Exit, id, exit),
          frame(Reply.Exit, id, exit),
        ]),
      (id) =>
        Buffer.concat([
          frame(Reply.Started, id, u32(1)),
          frame(Reply.OutputEnd, id),
          frame(Reply.Output, id),
        ]),
      (id) =>
        Buffer.concat([frame(Reply.Started, id, u32(1)), frame(Reply.Signalled, id, Buffer.from([0, 0]))]),
      (id) => Buffer.concat([frame(Reply.Started, id, u32(1)), frame(Reply.Info, id)]),
    ];
    const short = Buffer.from([0, 0]);
    const long = Buffer.alloc(200);
    const info = new PayloadWriter().u8(0).u32(0).u32(0).u32(0).u32(0).u64(0n).u64(0n).u32(0);
    info.text("").text("").text("").u16(20_000);
    // To make an object of them would take a tenth of a second.
    for (let index = 0; index < 20_000; index += 1) info.text(index.toString(36)).text("");
    for (const [type, reply, ask] of [
      [Request.Stat, Reply.Info, ({ files }) => files.stat("/x")],
      [Request.Move, Reply.Info, ({ files }) => files.move("/x", "/y")],
      [Request.Remove, Reply.Done, ({ files }) => files.remove("/x")],
      [Request.Account, Reply.Account, (connection) => connection.user("user")],
    ] satisfies readonly [number, number, (connection: AgentConnection) => Promise<unknown>][]) {
      for (const payload of [short, long, info.finish()]) {
        const { connection, agent, asked } = await scripted();
        const waiting = ask(connection);
        agent.write(frame(reply, await asked(type), payload));
        await assert.rejects(waiting, isUnavailable, `reply ${reply}`);
        assert.ok(connection.isOver, "the connection has ended");
        await connection.closed;
      }
    }
    for (const [index, answer] of answers.entries()) {
      const { connection, agent, asked } = await scripted();
      const waiting = connection.files.stat("/x");
      const starting = spawnTrue(connection).then((started) => started.exit);
      agent.write(answer(await asked(Request.Spawn)));
      await assert.rejects(waiting, isUnavailable, `answer ${index}`);
      const ended = await starting.catch((error: unknown) => isUnavailable(error));
      assert.ok(ended === true || ended.signal === "SIGKILL" || ended.code === 0, `answer ${index}`);
      await connection.closed;
      await assert.rejects(spawnTrue(connection), isUnavailable);
    }
  });

  it("cannot make the server buffer more than was granted", async () => {
    for (const size of [0, 1, 65_536]) {
      const { connection, agent, asked } = await scripted();
      const starting = spawnTrue(connection);
      const id = await asked(Request.Spawn);
      agent.write(frame(Reply.Started, id, new PayloadWriter().u32(1).finish()));
      await starting;
      const piece = frame(Reply.Output, id, Buffer.alloc(size));
      let sent = 0;
      const over = new AbortController();
      void connection.closed.then(() => over.abort());
      while (!over.signal.aborted && sent < 64 * 2 ** 20) {
        // Sent bytes arrive at once here and are freed there.
        agent.write(Buffer.from(piece));
        sent += piece.byteLength + 64;
        await new Promise(setImmediate);
      }
      await connection.closed;
      assert.ok(sent < 600_000, `it took ${sent} bytes in frames of ${size}`);
    }
  });

  it("that ends behind very many frames is heard to its end, and holds up nobody", async (test) => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-protocol-"));
    test.after(() => rm(directory, { recursive: true }));
    const path = join(directory, "agent.sock");
    const reader = new FrameReader();
    const server = createServer((agent) => {
      agent.on("error", () => undefined);
      agent.write(Buffer.concat([greeting, noProcesses]));
      agent.on("data", (chunk: Buffer) => {
        for (const { type, id } of reader.push(chunk)) {
          if (type !== Request.Spawn) continue;
          const started = frame(Reply.Started, id, new PayloadWriter().u32(1).finish());
          const piece = frame(Reply.Output, id, Buffer.from([1, 1]));
          agent.end(Buffer.concat([started, ...Array.from({ length: 3_000 }, () => piece)]));
        }
      });
    }).listen(path);
    test.after(() => server.close());
    await once(server, "listening");
    // As that of a child process.
    const connection = await AgentConnection.open(connect(path));
    const { output } = await spawnTrue(connection);
    let bytes = 0;
    for await (const { data } of output) bytes += data.byteLength;
    assert.equal(bytes, 6_000);
    await connection.closed;
  });

  it("that never confirms a release is disconnected: the list of released ids has an end", async () => {
    const { connection } = await scripted();
    for (let released = 0; !connection.isOver; released += 1) {
      assert.ok(released < 20_000, "it releases more and more");
      const leaving = new AbortController();
      const dialled = connection.dial(1, leaving.signal);
      leaving.abort();
      await assert.rejects(dialled);
    }
    await connection.closed;
  });

  it("cannot make any operation throw an unexpected error with random bytes", async () => {
    for (let seed = 0; seed < 150; seed++) {
      const random = generator(seed);
      const { connection, agent } = await scripted();
      const outcomes = [
        spawnTrue(connection).then(async (started) => {
          for await (const _ of started.output);
          return started.exit;
        }),
        connection.files.stat("/x"),
        Array.fromAsync(connection.files.list("/x", 3)),
        connection.files.read("/x").then(async (file) => Array.fromAsync(file.content())),
        connection.files.write(
          "/x",
          (async function* () {
            yield Buffer.alloc(300_000);
          })(),
        ),
        connection.files.remove("/x"),
        connection.user("x"),
        connection
          .dial(1, new AbortController().signal)
          .then((stream) => stream.on("error", () => undefined)),
        connection.files
          .watch("/x", { recursive: true, signal: AbortSignal.timeout(10_000) })
          .then(async (events) => Array.fromAsync(events)),
      ];
      const settled = Promise.allSettled(outcomes);
      const types = Object.values(Reply);
      for (let count = 0; count < 60; count++) {
        const payload = Buffer.from(
          Array.from({ length: random(80) }, () => (random(3) > 0 ? random(4) : random(256))),
        );
        agent.write(frame(types[random(types.length)] ?? 0, random(12), payload));
      }
      agent.end(Buffer.from([1, 2, 3]));
      await connection.closed;
      for (const outcome of await settled) {
        if (outcome.status === "rejected")
          assert.ok(outcome.reason instanceof SandboxError, `seed ${seed}: ${outcome.reason}`);
      }
    }
  });
});

const FUZZ_SECONDS = 15;

describe("the parser of the agent", () => {
  const native = fileURLToPath(new URL("../../native", import.meta.url));
  const run = promisify(execFile);

  const flags = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-fno-sanitize-recover=all"];
  const sources = [`${native}/fuzz-frames.c`, `${native}/frames.c`];

  /** @returns the program, or undefined if it cannot be compiled. */
  async function build(test: TestContext, compiler: string, options: readonly string[]) {
    const folder = await mkdtemp(join(tmpdir(), "coppice-fuzz-"));
    test.after(() => rm(folder, { recursive: true, force: true }));
    const program = join(folder, "fuzz-frames");
    const built = run(compiler, [...flags, ...options, ...sources, "-o", program]);
    return built.then(
      () => program,
      () => undefined,
    );
  }

  it("accesses no memory outside of the frame, whatever its content", async (test) => {
    const program = await build(test, "cc", ["-DCOPPICE_FUZZ_MAIN", "-fsanitize=address,undefined"]);
    if (program === undefined) return test.skip("there is no compiler with sanitizers");
    await run(program, ["1", "100000"]);
  });

  it("withstands a coverage-guided fuzzer", async (test) => {
    const program = await build(test, "clang", ["-fsanitize=fuzzer,address,undefined"]);
    if (program === undefined)
      return test.skip("there is no clang with libFuzzer (apt: clang, libclang-rt-dev)");
    const limits = [`-max_total_time=${FUZZ_SECONDS}`, "-max_len=8192", "-timeout=5", "-print_final_stats=1"];
    const { stderr } = await run(program, [...limits, `-artifact_prefix=${program}-`]).catch(
      (error: Error & { readonly stderr: string }) => assert.fail(error.stderr),
    );
    const [, executed = ""] = /number_of_executed_units: (\d+)/.exec(stderr) ?? [];
    test.diagnostic(`${executed} inputs in ${FUZZ_SECONDS} s`);
    assert.ok(Number(executed) > 1_000, stderr);
  });
});
