import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Commands } from "../contract/commands.js";
import {
  type CommandsServer,
  type Frame,
  frames,
  envelope,
  startCommandsServer,
} from "../testing/commands-server.js";

const sh = (script: string) => ({ process: { cmd: "/bin/sh", args: ["-c", script] } });
const outputOf = (frame: Frame | undefined): Buffer => {
  const { stdout = "", stderr = "" } = frame?.message.event?.data ?? {};
  return Buffer.from(`${stdout}${stderr}`, "base64");
};
const joinOutput = (received: readonly Frame[]): string => Buffer.concat(received.map(outputOf)).toString();

interface LogsAnswer {
  readonly command_id: string;
  readonly bytes: string;
  readonly next_cursor: number;
  readonly truncated_before?: number;
  readonly phase: string;
  readonly exit_code: number | null;
  readonly message?: string;
}

describe("the output of commands, later", { timeout: 240_000 }, () => {
  let server: CommandsServer;
  before(async () => {
    server = await startCommandsServer({ subscriberBuffer: "64KiB", endedRetention: "3s" });
  });
  after(() => server[Symbol.asyncDispose]());

  async function begin(script: string) {
    const stream = server.stream("Start", sh(script));
    const pid = Number((await stream.next()).value?.message.event.start.pid);
    return { pid, stream, rest: () => Array.fromAsync(stream) };
  }
  const connect = (pid: number, replay: string | undefined) =>
    server.stream(
      "Connect",
      { process: { pid } },
      {
        headers: replay === undefined ? {} : { "coppice-replay": replay },
      },
    );
  async function logs(command: number | string, query = ""): Promise<LogsAnswer> {
    const response = await server.fetch(`/commands/${command}/logs${query}`);
    return (await response.json()) as LogsAnswer;
  }

  it("Connect gives live output alone, unless the client asks for earlier output", async () => {
    const command = await begin("echo one; echo two >&2; read line; echo $line");
    while ((await logs(command.pid)).next_cursor < 8) await sleep(5);
    const late = [undefined, "all", "0", "4", "6", "8", "9999"].map((replay) => connect(command.pid, replay));
    const first = await Promise.all(late.map((stream) => stream.next()));
    for (const { value } of first) assert.equal(value?.message.event.start.pid, command.pid);
    const input = {
      process: { pid: command.pid },
      input: { stdin: Buffer.from("three\n").toString("base64") },
    };
    const rest = late.map((stream) => Array.fromAsync(stream));
    // A subscriber has begun to follow when its first piece arrives.
    await sleep(50);
    await server.call("SendInput", input);
    const texts = (await Promise.all(rest)).map(joinOutput);
    const whole = "one\ntwo\nthree\n";
    assert.deepEqual(texts, ["three\n", whole, whole, "two\nthree\n", "o\nthree\n", "three\n", "three\n"]);
    const streams = (await Array.fromAsync(connect(command.pid, "all"))).map(({ message }) =>
      Object.keys(message.event?.data ?? {}).join(),
    );
    assert.deepEqual(streams.filter(Boolean), ["stdout", "stderr", "stdout"], "an ended command is replayed");
  });

  it("the answer names the offset of its first byte; an invalid offset is refused", async () => {
    const command = await begin("echo hello; sleep 60");
    await command.stream.next();
    const ask = async (replay: string) => {
      const gone = new AbortController();
      const response = await server.fetch("/process.Process/Connect", {
        method: "POST",
        headers: { "content-type": "application/connect+json", "coppice-replay": replay },
        body: envelope({ process: { pid: command.pid } }),
        signal: gone.signal,
      });
      const message = (await frames(response.body ?? assert.fail()).next()).value?.message;
      gone.abort();
      return { from: response.headers.get("coppice-replay"), message };
    };
    assert.equal((await ask("all")).from, "0");
    assert.equal((await ask("3")).from, "3");
    assert.equal((await ask("100")).from, "6");
    for (const wrong of ["", "-1", "1.5", "all of it", "99999999999999999999"]) {
      assert.equal((await ask(wrong)).message.error?.code, "invalid_argument", wrong);
    }
    await server.call("SendSignal", { process: { pid: command.pid }, signal: 9 });
    await command.rest();
  });

  it("replayed and live output together are each byte once, also for slow readers", async () => {
    const lines = 60_000;
    const command = await begin(`i=0; while [ $i -lt ${lines} ]; do echo line $i; i=$((i+1)); done`);
    const expected = Array.from({ length: lines }, (_, line) => `line ${line}\n`).join("");
    const read = async (slow: boolean, from: number): Promise<string> => {
      const received: Frame[] = [];
      for await (const frame of connect(command.pid, String(from))) {
        received.push(frame);
        if (slow && received.length % 8 === 0) await sleep(2);
      }
      assert.equal(received.at(-1)?.flags, 2);
      return joinOutput(received);
    };
    const offsets = [0, 1, 1000, 20_000];
    const readers: Promise<string>[] = [];
    for (const from of offsets) {
      while ((await logs(command.pid)).next_cursor < from) await sleep(1);
      readers.push(read(true, from), read(false, from));
    }
    const followed = joinOutput(await command.rest());
    assert.equal(followed, expected);
    for (const [at, text] of (await Promise.all(readers)).entries()) {
      const from = offsets[at >> 1] ?? 0;
      assert(
        text === expected.slice(from),
        `reader ${at} from ${from}: ${text.length} of ${expected.length - from}`,
      );
    }
  });

  it("a page has text, a cursor and the phase, also of a command that has ended", async () => {
    const command = await begin("printf 'h\\303\\251'; printf 'oops' >&2; exit 3");
    await command.rest();
    await sleep(3200);
    const { command_id, ...page } = await logs(command.pid);
    assert.deepEqual([page.bytes.length, page.next_cursor, page.phase, page.exit_code], [6, 7, "exited", 3]);
    assert.equal((await logs(command_id)).bytes, page.bytes, "by its id as well");
    assert.equal((await logs(command.pid, "?stream=stdout")).bytes, "hé");
    assert.equal((await logs(command.pid, "?stream=stderr")).bytes, "oops");
    assert.equal((await logs(command.pid, "?stream=pty")).bytes, "");
    assert.equal((await logs(command.pid, "?stream=stdout")).next_cursor, 7);
    const raw = await logs(command.pid, "?encoding=base64&stream=stdout");
    assert.deepEqual(Buffer.from(raw.bytes, "base64"), Buffer.from("hé"));
    const rest = await logs(command.pid, `?cursor=${page.next_cursor}`);
    assert.deepEqual([rest.bytes, rest.next_cursor], ["", 7]);
    assert.equal((await logs(command.pid, "?cursor=5000")).next_cursor, 5000);
  });

  it("pages never split a character, and together they are the output", async () => {
    const text = "aé€𝄞".repeat(500);
    const command = await begin(`printf '%s' '${text}'; sleep 60`);
    let read = "";
    for (let cursor = 0; cursor < Buffer.byteLength(text);) {
      const page = await logs(command.pid, `?cursor=${cursor}&limit=${4 + (cursor % 7)}`);
      assert(!page.bytes.includes("\uFFFD"), `the page at ${cursor}: ${page.bytes}`);
      assert.equal(page.next_cursor - cursor, Buffer.byteLength(page.bytes));
      read += page.bytes;
      cursor = page.next_cursor;
    }
    assert.equal(read, text);
    assert.equal((await logs(command.pid)).phase, "running");
    assert.equal((await logs(command.pid)).exit_code, null);
    await server.call("SendSignal", { process: { pid: command.pid }, signal: 9 });
    await command.rest();
    assert.equal((await logs(command.pid)).phase, "killed");
  });

  it("an invalid page is refused", async () => {
    const status = async (path: string) => (await server.fetch(path)).status;
    assert.equal(await status("/commands/4294967295/logs"), 404);
    assert.equal(await status(`/commands/${randomUUID()}/logs`), 404);
    for (const path of ["x", "-1", "1.5", "%00", "99999999999"]) {
      assert.equal(await status(`/commands/${encodeURIComponent(path)}/logs`), 400, path);
    }
    const { pid } = await begin("exit 0");
    for (const query of [
      "cursor=-1",
      "cursor=x",
      "limit=0",
      "limit=3",
      "limit=999999999",
      "stream=all",
      "cursor=1&cursor=2",
    ]) {
      assert.equal(await status(`/commands/${pid}/logs?${query}`), 400, query);
    }
    assert.equal(await status(`/commands/${pid}/logs?limit=4`), 200);
  });

  it("readiness and metrics include the log", async () => {
    const ready = (await (await fetch(`${server.server.urls["ops"]}/readyz`)).json()) as { checks: object };
    assert.deepEqual({ ...ready.checks }, { ...ready.checks, "commands-log": "ok" });
    // The last writes may still wait for their batch.
    while ((await server.metric("log_bytes")) === 0) await sleep(10);
    assert((await server.metric("log_written_bytes_total")) > 0);
    assert.equal(await server.metric("log_dropped_bytes_total"), 0);
  });
});

it("the log of a sandbox outlives it, and the server", { timeout: 240_000 }, async (context) => {
  const dataDir = await mkdtemp(join(tmpdir(), "coppice-log-"));
  context.after(() => rm(dataDir, { recursive: true, force: true }));
  const first = await startCommandsServer({}, { dataDir });
  const { id } = first.sandbox.record;
  const logs = first.server.resolve(Commands).log(id);
  const running = first.stream("Start", sh("echo to the last byte; sleep 60"));
  const pid = Number((await running.next()).value?.message.event.start.pid);
  await running.next();
  await Promise.all([first.server.sandboxes.kill(id), Array.fromAsync(running).catch(() => {})]);
  const command = await logs.find({ pid });
  assert.deepEqual([command.phase, command.end?.exit], ["lost", undefined]);
  await first[Symbol.asyncDispose]();

  await using second = await startCommandsServer({}, { dataDir });
  const kept = second.server.resolve(Commands).log(id);
  const page = await kept.page(command.id, { cursor: 3, limitBytes: 1000 });
  assert.equal(Buffer.concat(page.pieces.map(({ data }) => data)).toString(), "the last byte\n");
  assert.equal(page.command.phase, "lost");
  assert.deepEqual(
    (await Array.fromAsync(kept.list())).map(({ pid }) => pid),
    [pid],
  );
});
