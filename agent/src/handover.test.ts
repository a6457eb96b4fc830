import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { mkdtemp, open, readFile, rename, rm, symlink, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { SandboxError } from "@coppice/core/backend";
import { eventually } from "@coppice/core/testing";
import { AgentConnection } from "./agent-connection.js";
import { connectSocket } from "./connect-socket.js";
import { ProcessDescriptors } from "./built/agent-binary.js";
import { takeTurn } from "./handover/direct-file.js";
import { withoutRoot } from "./testing/agent-kinds.js";
import { type ListeningAgent, startListeningAgent } from "./testing/listening-agent.js";
import { openDescriptors } from "./testing/open-descriptors.js";
import { env, finish } from "./testing/run.js";
import { FrameReader } from "./wire/frame-reader.js";
import { Feature, MAGIC, PayloadWriter, Reply, Request, VERSION, frameHeader } from "./wire/frames.js";

const MEBIBYTE = 2 ** 20;
const skip =
  // Only root may trace an agent outside of a user namespace: it is not dumpable.
  withoutRoot || (process.platform === "linux" ? false : "descriptors are handed over on Linux alone");

interface Opened extends AsyncDisposable {
  readonly agent: ListeningAgent;
  readonly connection: AgentConnection;
  readonly directory: string;
  /** Descriptors of this process and of the agent. */
  count(): readonly [number, number];
}

async function openAgent(): Promise<Opened> {
  const agent = await startListeningAgent();
  const directory = await mkdtemp(join(tmpdir(), "coppice-handover-"));
  const pid = agent.child.pid ?? 0;
  const connection = await agent.connect({ openPeer: async () => ProcessDescriptors.open(pid) });
  return {
    agent,
    connection,
    directory,
    count: () => [openDescriptors(process.pid), openDescriptors(pid)],
    async [Symbol.asyncDispose]() {
      await connection.close();
      await agent[Symbol.asyncDispose]();
      await rm(directory, { recursive: true });
    },
  };
}

async function* pieces(data: Uint8Array, bytes: number): AsyncGenerator<Uint8Array> {
  // The next one reuses its memory.
  const piece = Buffer.alloc(bytes);
  for (let at = 0; at < data.byteLength; at += bytes) {
    piece.set(data.subarray(at, at + bytes));
    yield piece.subarray(0, Math.min(bytes, data.byteLength - at));
  }
}

describe("a descriptor that an agent hands over", { skip }, () => {
  it("reads the file that was opened, whatever its path leads to then, and is closed with it", async () => {
    await using opened = await openAgent();
    const { connection, directory } = opened;
    const path = join(directory, "file");
    const data = randomBytes(MEBIBYTE + 7);
    await writeFile(path, data);
    // The first one opens the process of the agent.
    await using first = await connection.files.read(path);
    await first.direct();
    const before = opened.count();
    const file = await connection.files.read(path);
    const direct = await file.direct();
    assert.ok(direct);
    await writeFile(join(directory, "other"), "secret");
    await rename(join(directory, "other"), path);
    const target = Buffer.alloc(2 * MEBIBYTE);
    assert.equal(await direct.read(target, 3), data.byteLength - 3);
    assert.ok(target.subarray(0, data.byteLength - 3).equals(data.subarray(3)));
    assert.equal(await direct.read(target, data.byteLength), 0);
    assert.equal(await file.direct(), direct);
    const late = direct.read(target, 0);
    await file[Symbol.asyncDispose]();
    assert.equal(await late, data.byteLength);
    await assert.rejects(direct.read(target, 0), /the file is closed/);
    await eventually("the descriptors are closed", () =>
      opened.count().every((count, at) => count === before[at]),
    );
  });

  it("is left alone while another read of its sandbox is held up: the agent reads", async () => {
    await using opened = await openAgent();
    const { connection, directory } = opened;
    const data = randomBytes(MEBIBYTE + 7);
    await writeFile(join(directory, "file"), data);
    await using file = await connection.files.read(join(directory, "file"));
    const direct = await file.direct();
    const endTurn = await takeTurn(connection);
    assert.ok(direct && endTurn);
    const target = Buffer.alloc(2 * MEBIBYTE);
    for (const position of [3, data.byteLength]) {
      const count = await direct.read(target, position);
      assert.ok(target.subarray(0, count).equals(data.subarray(position)));
    }
    endTurn();
  });

  it("is not used for files of /proc, whose reads may need rights of the reader", async () => {
    await using opened = await openAgent();
    await using file = await opened.connection.files.read("/proc/self/status");
    assert.equal(await file.direct(), undefined);
  });

  it("takes a written file, which is whole or not there", async () => {
    await using opened = await openAgent();
    const { connection, directory } = opened;
    const data = randomBytes(5 * MEBIBYTE + 11);
    const path = join(directory, "new/file");
    const info = await connection.files.write(path, pieces(data, 100_000));
    assert.equal(info.sizeBytes, data.byteLength);
    assert.ok(data.equals(await readFile(path)));
    const before = opened.count();
    async function* broken(): AsyncGenerator<Uint8Array> {
      yield* pieces(data, 100_000);
      throw new Error("broken off");
    }
    await assert.rejects(connection.files.write(path, broken()), /broken off/);
    assert.ok(data.equals(await readFile(path)));
    await assert.rejects(connection.files.write(`${path}/below`, pieces(data, 100_000)), SandboxError);
    await eventually("the descriptors are closed", () =>
      opened.count().every((count, at) => count === before[at]),
    );
  });

  it("says why a file could not be written", async () => {
    await using opened = await openAgent();
    // 0 bytes are free there.
    await symlink("/dev/full", join(opened.directory, "full"));
    await assert.rejects(
      opened.connection.files.write(join(opened.directory, "full"), pieces(Buffer.alloc(MEBIBYTE), 65_536)),
      /not a regular file/,
    );
  });

  it("is the input of a process, after what was sent before", async () => {
    await using opened = await openAgent();
    const command = { path: "sha256sum", args: [], env, cwd: "/" };
    const process = await opened.connection.spawn(command);
    const data = randomBytes(9 * MEBIBYTE);
    const writes = [
      process.write(data.subarray(0, 1_000)),
      process.write(data.subarray(1_000, 4 * MEBIBYTE)),
      process.write(data.subarray(4 * MEBIBYTE, 4 * MEBIBYTE + 10)),
      process.write(data.subarray(4 * MEBIBYTE + 10)),
    ];
    const finished = finish(process);
    await Promise.all(writes);
    await process.closeInput();
    const digest = createHash("sha256").update(data).digest("hex");
    assert.equal((await finished).stdout.toString(), `${digest}  -\n`);
  });

  it("stays open for the next server when the first one goes away", async () => {
    await using opened = await openAgent();
    const command = { path: "wc", args: ["-c"], env, cwd: "/" };
    const first = await opened.connection.spawn(command);
    await first.write(Buffer.alloc(MEBIBYTE));
    const second = await opened.agent.connect();
    const [found] = await second.processes();
    assert.ok(found);
    const finished = finish(found);
    await found.write(Buffer.from("more"));
    await found.closeInput();
    assert.equal((await finished).stdout.toString(), `${MEBIBYTE + 4}\n`);
    await second.close();
  });

  it("fails a process's input when nobody reads it, and waits while nobody does", async () => {
    await using opened = await openAgent();
    const command = { args: [], env, cwd: "/" };
    const idle = await opened.connection.spawn({ ...command, path: "sleep", args: ["100"] });
    let isWritten = false;
    const waiting = idle.write(Buffer.alloc(4 * MEBIBYTE)).finally(() => (isWritten = true));
    const closed = await opened.connection.spawn({ ...command, path: "true" });
    await assert.rejects(closed.write(Buffer.alloc(4 * MEBIBYTE)), /stdin not enabled or closed/);
    assert.equal(isWritten, false);
    const failed = assert.rejects(waiting, /stdin not enabled or closed/);
    await idle.kill("SIGKILL");
    await failed;
    await closed.closeInput();
  });

  it("is closed when the agent dies", async () => {
    await using opened = await openAgent();
    const { connection, directory } = opened;
    await writeFile(join(directory, "file"), "content");
    const before = openDescriptors(process.pid);
    const file = await connection.files.read(join(directory, "file"));
    const direct = await file.direct();
    assert.ok(direct);
    opened.agent.child.kill("SIGKILL");
    await connection.closed;
    await assert.rejects(direct.read(Buffer.alloc(10), 0), /the agent is gone/);
    // The connection's own is closed, too.
    await eventually("the descriptors are closed", () => openDescriptors(process.pid) < before);
  });
});

describe("a replaced agent", { skip }, () => {
  it("hands over nothing but ordinary files", async () => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-handover-"));
    await using folder = await open(directory);
    await using pseudo = await open("/proc/self/status");
    await using device = await open("/dev/zero");
    await using plain = await open(join(directory, "plain"), "w+");
    await using unreadable = await open(join(directory, "unreadable"), "w");
    const named: readonly (readonly [number, boolean])[] = [
      [folder.fd, false],
      [pseudo.fd, false],
      [device.fd, false],
      [plain.fd, true],
      [unreadable.fd, true],
      // The last ones end the handing over.
      [100_000, false],
      [plain.fd, false],
    ];
    let answers = 0;
    const server = createServer((socket) => {
      const reader = new FrameReader();
      const send = (type: number, id: number, payload = new PayloadWriter()): void => {
        const bytes = payload.finish();
        socket.write(Buffer.concat([frameHeader(type, id, bytes.byteLength), bytes]));
      };
      send(Reply.Hello, 0, new PayloadWriter().u32(MAGIC).u16(VERSION).u32(1).u32(Feature.Share));
      socket.on("error", () => undefined);
      socket.on("data", (chunk: Buffer) => {
        for (const { type, id } of reader.push(chunk)) {
          if (type === Request.Processes) send(Reply.ProcessesEnd, 0);
          if (type === Request.Open) send(Reply.Info, id, info());
          if (type === Request.Share)
            send(Reply.Shared, id, new PayloadWriter().u32(named[answers++]?.[0] ?? 0));
        }
      });
    });
    const path = join(directory, "socket");
    await new Promise<void>((resolve) => void server.listen(path, resolve));
    const connection = await AgentConnection.open(await connectSocket(path), {
      openPeer: async () => ProcessDescriptors.open(process.pid),
    });
    for (const [descriptor, isUsable] of named) {
      const before = openDescriptors(process.pid);
      const file = await connection.files.read("/file");
      const direct = await file.direct();
      assert.equal(direct !== undefined, isUsable, String(descriptor));
      if (direct !== undefined && descriptor === unreadable.fd)
        await assert.rejects(direct.read(Buffer.alloc(1), 0), SandboxError);
      await file[Symbol.asyncDispose]();
      // The first one has opened the process of the agent.
      await eventually("the descriptors are closed", () => openDescriptors(process.pid) <= before + 1);
    }
    assert.equal(answers, named.length - 1);
    await connection.close();
    server.close();
    await rm(directory, { recursive: true });
  });
});

/** The description of a file. */
function info(): PayloadWriter {
  const numbers = new PayloadWriter()
    .u8(0)
    .u32(0o644)
    .u32(0o100644)
    .u32(0)
    .u32(0)
    .u64(1_000_000n)
    .u64(0n)
    .u32(0);
  return numbers.text("root").text("root").text("").u16(0);
}
