import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { createHash, hash, randomFillSync } from "node:crypto";
import { once } from "node:events";
import { request as httpRequest, type IncomingMessage } from "node:http";
import { after, before, describe, it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { promisify } from "node:util";
import { API_KEY } from "../../harness/server/api-key.js";
import { exchange } from "../../harness/clients/exchange.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { type Codec, ProcessClient, type StartedProgram } from "../../harness/clients/process-client.js";
import {
  type Installation,
  makeInstallation,
  namespacePlugins,
  ServerProcess,
} from "../../harness/server/server-process.js";
import type { BackendName } from "../../harness/server/start-full-server.js";

/** More than what may be held on the way, and than what the server may grow by. */
const BYTES = 40_000_000;
const PIECE_BYTES = 256 * 1024;
const SLOW_BYTES_PER_SECOND = 1_000_000;
const SLOW_SECONDS = 4;
const GROWTH_LIMIT_BYTES = 30_000_000;
/** Bytes that sockets and buffers hold on the way to a program that does not read. */
const ON_THE_WAY_BYTES = 16_000_000;

const random = randomFillSync(Buffer.allocUnsafe(BYTES));
const digest = hash("sha256", random);

function* pieces(): Generator<Buffer> {
  for (let at = 0; at < BYTES; at += PIECE_BYTES) yield random.subarray(at, at + PIECE_BYTES);
}

describe("bytes of any kind, on local-process", { timeout: 240_000 }, () => binaryScenarios("local-process"));
describe("bytes of any kind, on linux-namespaces", { timeout: 240_000, skip: missingForNamespaces() }, () =>
  binaryScenarios("linux-namespaces"),
);

function binaryScenarios(backend: BackendName): void {
  let installation: Installation;
  let server: ServerProcess;
  let headers: Readonly<Record<string, string>>;
  let client: ProcessClient;

  before(async () => {
    installation = await makeInstallation({
      config: { sandboxes: { defaultBackend: backend } },
      ...(backend === "linux-namespaces" && { plugins: namespacePlugins }),
    });
    server = await ServerProcess.start(installation.configFile);
    const created = await exchange(server.url, {
      method: "POST",
      path: "/v2/sandboxes",
      headers: { "x-api-key": API_KEY, "content-type": "application/json" },
      body: '{"templateID":"base"}',
    });
    const { sandboxID, envdAccessToken } = created.json() as {
      readonly sandboxID: string;
      readonly envdAccessToken: string;
    };
    headers = {
      "e2b-sandbox-id": sandboxID,
      "e2b-sandbox-port": "49983",
      "x-access-token": envdAccessToken,
    };
    client = new ProcessClient(server.url, headers);
  });
  after(async () => {
    await server?.stop();
    await installation?.remove();
  });

  /** Feeds a program all the bytes while it hashes the output of one stream. */
  async function echo(
    program: StartedProgram,
    {
      codec,
      channel,
      stream,
    }: { codec: Codec; channel: "stdin" | "pty"; stream: "stdout" | "stderr" | "pty" },
  ): Promise<void> {
    const received = createHash("sha256");
    const other = codec === "json" ? "proto" : "json";
    let feeding: Promise<void> | undefined;
    let receivedBytes = 0;
    let exitCode: number | undefined;
    let pid = 0;
    const feed = async (): Promise<void> => {
      await client.input({ pid, channel, codec: other, pieces: pieces() });
      if (channel === "stdin") await client.closeStdin(pid);
    };
    for await (const event of client.start(program, codec)) {
      pid ||= event.pid ?? 0;
      exitCode ??= event.end;
      const data = event[stream];
      if (feeding === undefined && (channel === "stdin" || data !== undefined)) {
        // In a terminal, the input follows the line `raw`, which the program prints once the terminal is in raw mode.
        feeding = feed();
        feeding.catch(() => undefined);
        if (data !== undefined) assert.equal(data.toString(), "raw\n");
      } else if (data !== undefined) {
        received.update(data);
        receivedBytes += data.length;
      }
    }
    await feeding;
    assert.equal(receivedBytes, BYTES);
    assert.equal(received.digest("hex"), digest);
    assert.equal(exitCode, 0);
  }

  it("go through stdin and stdout: in as JSON, out as protobuf", () =>
    echo({ cmd: "cat", stdin: true }, { codec: "proto", channel: "stdin", stream: "stdout" }));

  it("go through stdin and stderr: in as protobuf, out as JSON", () =>
    echo(
      { cmd: "/bin/sh", args: ["-c", "exec cat >&2"], stdin: true },
      { codec: "json", channel: "stdin", stream: "stderr" },
    ));

  it("go through a raw terminal, both ways", () =>
    echo(
      { cmd: "/bin/sh", args: ["-c", `stty raw -echo; echo raw; exec head -c ${BYTES}`], pty: true },
      { codec: "proto", channel: "pty", stream: "pty" },
    ));

  it("go into a file and out of it, and what a program finds there is the same", async () => {
    const upload = { ...headers, "content-type": "application/octet-stream" };
    const path = "/files?path=random.bin";
    const written = await exchange(server.url, { method: "POST", path, headers: upload, body: random });
    assert.equal(written.status, 200, written.text);
    let said = "";
    const sum = { cmd: "/bin/sh", args: ["-c", "sha256sum < random.bin"] };
    for await (const { stdout = "" } of client.start(sum, "json")) said += String(stdout);
    assert.equal(said.split(" ")[0], digest);
    const read = await exchange(server.url, { path, headers });
    assert.equal(read.body.length, BYTES);
    assert.equal(hash("sha256", read.body), digest);
  });

  it("wait for who reads 1 MB/s, and for a program that does not read: in the pipe and not in the server's memory", async () => {
    // The cases before have warmed the server up: its memory has its working size.
    const before = await residentBytes(server.pid);
    const leave = new AbortController();
    const flood = async (codec: Codec): Promise<void> => {
      const flooding = client.start({ cmd: "cat", args: ["/dev/zero"] }, codec);
      await readSlowly(flooding, ({ stdout }) => stdout?.length ?? 0);
    };
    const download = async (): Promise<void> => {
      const { hostname, port } = new URL(server.url);
      const outgoing = httpRequest({ hostname, port, path: "/files?path=random.bin", headers, agent: false });
      outgoing.end();
      const [answer] = (await once(outgoing, "response")) as [IncomingMessage];
      await readSlowly(answer as AsyncIterable<Buffer>, ({ length }) => length);
    };
    const upload = async (): Promise<void> => {
      const events = client.start({ cmd: "sleep", args: ["300"], stdin: true }, "json");
      const { value } = await events.next();
      let sentBytes = 0;
      const counted = (function* () {
        for (const piece of pieces()) {
          yield piece;
          sentBytes += piece.length;
        }
      })();
      const pid = (value as { readonly pid: number }).pid;
      await assert.rejects(
        client.input({ pid, channel: "stdin", codec: "proto", pieces: counted }, leave.signal),
        {
          name: "AbortError",
        },
      );
      assert.ok(sentBytes < ON_THE_WAY_BYTES, `${sentBytes} bytes went to a program that reads none`);
      await events.return(undefined);
    };
    const all = Promise.all([flood("json"), flood("proto"), download(), upload()]);
    let most = before;
    for (let second = 0; second < SLOW_SECONDS * 2; second += 1) {
      await pause(500);
      most = Math.max(most, await residentBytes(server.pid));
    }
    leave.abort();
    await all;
    assert.ok(most - before < GROWTH_LIMIT_BYTES, `the server grew by ${most - before} bytes`);
  });
}

/** Reads SLOW_BYTES_PER_SECOND, 1 MB, per second for SLOW_SECONDS. */
async function readSlowly<T>(source: AsyncIterable<T>, bytesOf: (piece: T) => number): Promise<void> {
  const startMs = performance.now();
  let bytes = 0;
  for await (const piece of source) {
    bytes += bytesOf(piece);
    if (bytes >= SLOW_SECONDS * SLOW_BYTES_PER_SECOND) return;
    await pause(Math.max(0, (bytes / SLOW_BYTES_PER_SECOND) * 1000 - (performance.now() - startMs)));
  }
  throw new Error(`the source ended after ${bytes} bytes`);
}

async function residentBytes(pid: number): Promise<number> {
  const { stdout } = await promisify(execFile)("ps", ["-o", "rss=", "-p", String(pid)]);
  return Number(stdout) * 1024;
}
