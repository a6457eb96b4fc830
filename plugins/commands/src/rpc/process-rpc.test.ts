import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { gzipSync } from "node:zlib";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { create } from "@bufbuild/protobuf";
import { definePlugin, ENVD_PORT } from "@coppice/core";
import { memoryBackend, startTestServer } from "@coppice/core/testing";
import { ConnectResponseSchema, Process } from "../generated/process/process_pb.js";
import {
  type CommandsServer,
  type Frame,
  type StreamInit,
  envelope,
  frames,
  startCommandsServer,
} from "../testing/commands-server.js";

const sh = (script: string, extra: object = {}) => ({
  process: { cmd: "/bin/sh", args: ["-c", script] },
  ...extra,
});
const text = (base64: string | undefined) => Buffer.from(base64 ?? "", "base64").toString();

/** Summary of the frames of a stream. */
function digest(received: readonly Frame[]) {
  const events = received.filter(({ flags }) => flags === 0).map(({ message }) => message.event);
  const output = (name: string) => events.map(({ data }) => text(data?.[name])).join("");
  return {
    names: events.map((event) => Object.keys(event)[0]),
    pid: Number(events[0]?.start?.pid),
    stdout: output("stdout"),
    stderr: output("stderr"),
    end: events.at(-1)?.end,
    trailer: received.at(-1)?.flags === 2 ? received.at(-1)?.message : undefined,
  };
}

describe("process.Process", { timeout: 240_000 }, () => {
  let server: CommandsServer;
  before(async () => {
    server = await startCommandsServer({ endedRetention: "1s", subscriberBuffer: "64KiB" });
  });
  after(() => server[Symbol.asyncDispose]());

  const run = async (method: string, body: unknown, init?: StreamInit) =>
    digest(await Array.fromAsync(server.stream(method, body, init)));

  /**
   * Starts a command and leaves its stream open.
   * @returns its pid and a function that reads the rest
   */
  async function begin(script: string, extra?: object, init?: StreamInit) {
    const stream = server.stream("Start", sh(script, extra), init);
    const first = await stream.next();
    const pid = Number(first.value?.message.event.start.pid);
    return {
      pid,
      selector: { process: { pid } },
      rest: async () => digest(await Array.fromAsync(stream)),
      stream,
    };
  }

  it("Start streams the pid, both outputs and the end, then the end of the stream", async () => {
    const said = await run("Start", sh("echo $$; echo oops >&2"));
    assert.equal(said.stdout, `${said.pid}\n`);
    assert.equal(said.stderr, "oops\n");
    assert.equal(said.names[0], "start");
    assert.deepEqual(said.end, { exited: true, status: "exit status 0" });
    assert.deepEqual(said.trailer, {});
  });

  it("the end reports an exit code, a signal, or an unknown program", async () => {
    const ends = [
      ["exit 43", { exitCode: 43, exited: true, status: "exit status 43", error: "exit status 43" }],
      ["kill -9 $$", { exitCode: -1, status: "signal: killed", error: "signal: killed" }],
      ["kill -TERM $$", { exitCode: -1, status: "signal: terminated", error: "signal: terminated" }],
    ] as const;
    for (const [script, end] of ends) assert.deepEqual((await run("Start", sh(script))).end, end, script);
    const unknown = await run("Start", { process: { cmd: "no-such-program" } });
    assert.equal(unknown.end.exitCode, 127);
    assert.match(unknown.stderr, /no-such-program/);
  });

  it("big output arrives whole, in messages of at most 32 KiB", async () => {
    const received = await Array.fromAsync(server.stream("Start", sh("head -c 3000000 /dev/zero")));
    const sizes = received.map(
      ({ message }) => Buffer.from(message.event?.data?.stdout ?? "", "base64").length,
    );
    assert.equal(
      sizes.reduce((sum, size) => sum + size, 0),
      3_000_000,
    );
    assert(Math.max(...sizes) <= 32 * 1024);
  });

  it("environment, directory and user are the request's", async () => {
    const process = {
      cmd: "/bin/sh",
      args: ["-c", 'echo "$A $E2B_SANDBOX"; pwd'],
      envs: { A: "b c" },
      cwd: "work",
    };
    await run("Start", sh("mkdir work"));
    assert.match((await run("Start", { process })).stdout, /^b c true\n\/.*\/work\n$/);
    const missing = await run("Start", { process: { ...process, cwd: "/no/such/dir" } });
    assert.deepEqual(missing.trailer, {
      error: { code: "invalid_argument", message: "cwd '/no/such/dir' does not exist" },
    });
    const headers = { authorization: `Basic ${Buffer.from("no-such-user:").toString("base64")}` };
    assert.deepEqual((await run("Start", { process }, { headers })).trailer, {
      error: { code: "unauthenticated", message: "invalid username: 'no-such-user'" },
    });
  });

  it("a tag, a directory and a user beyond their limits are refused, whatever their size", async () => {
    const huge = "x".repeat(3 * 1024 * 1024);
    const refusals = [
      [{ tag: huge }, {}, /the tag is longer than 1024 bytes/],
      [{ tag: "é".repeat(513) }, {}, /the tag is longer than 1024 bytes/],
      [{ process: { cmd: "/bin/true", cwd: huge } }, {}, /the working directory is longer than 4095 bytes/],
    ] as const;
    for (const [more, init, reason] of refusals) {
      const { trailer } = await run("Start", sh("true", more), init);
      assert.equal(trailer.error.code, "invalid_argument");
      assert.match(trailer.error.message, reason);
      assert(trailer.error.message.length < 500);
    }
    const user = `Basic ${Buffer.from(`${"u".repeat(300)}:`).toString("base64")}`;
    const { trailer } = await run("Start", sh("true"), { headers: { authorization: user } });
    assert.match(trailer.error.message, /the user's name is longer than 256 bytes/);
    const unknown = await server.call("SendSignal", { process: { tag: huge }, signal: "SIGNAL_SIGTERM" });
    assert.equal(unknown.status, 404);
    assert(JSON.stringify(unknown.body).length < 500);
  });

  it("List shows arguments and variables, of a long command its first arguments alone", async () => {
    const listed = async (pid: number) => {
      const { body } = await server.call("List", {});
      const { processes } = body as { processes: { pid: number; config: Record<string, unknown> }[] };
      return processes.find((process) => process.pid === pid)?.config;
    };
    const short = await begin("cat", { process: { cmd: "/bin/cat", envs: { A: "b" }, args: ["-"] } });
    assert.deepEqual((await listed(short.pid))?.["envs"], { A: "b" });
    const args = ["-c", "cat", "sh", "x".repeat(20_000)];
    const long = await begin("cat", { process: { cmd: "/bin/sh", args, envs: { A: "b" } } });
    assert.deepEqual(await listed(long.pid), { cmd: "/bin/sh", args: ["-c", "cat", "sh"] });
    for (const { selector, rest } of [short, long]) {
      await server.call("CloseStdin", selector);
      await rest();
    }
  });

  it("stdin is fed by SendInput and ended by CloseStdin; stdin false is empty", async () => {
    const cat = await begin("cat");
    const input = (value: string) => ({
      ...cat.selector,
      input: { stdin: Buffer.from(value).toString("base64") },
    });
    assert.deepEqual(await server.call("SendInput", input("hello ")), { status: 200, body: {} });
    assert.deepEqual(await server.call("SendInput", input("")), { status: 200, body: {} });
    assert.equal((await server.call("SendInput", input("world"))).status, 200);
    for (let time = 0; time < 2; time += 1) {
      const closed = await server.call("CloseStdin", cat.selector);
      if (time === 0) assert.deepEqual(closed, { status: 200, body: {} });
    }
    assert.equal((await cat.rest()).stdout, "hello world");
    assert.equal((await run("Start", sh("cat; echo done", { stdin: false }))).stdout, "done\n");
  });

  it("every refusal of the other calls is envd's", async () => {
    const sleeper = await begin("sleep 60", { stdin: false });
    const { selector } = sleeper;
    const refusals = [
      [
        "SendSignal",
        { process: { pid: 4_000_000 }, signal: "SIGNAL_SIGKILL" },
        404,
        "not_found",
        "process with pid 4000000 not found",
      ],
      ["CloseStdin", { process: { tag: "none" } }, 404, "not_found", "process with tag none not found"],
      ["Update", {}, 501, "unimplemented", "invalid input type: the request selects no process"],
      ["SendInput", selector, 501, "unimplemented", "invalid input type: neither stdin nor pty is set"],
      [
        "SendInput",
        { ...selector, input: { stdin: "eA==" } },
        500,
        "internal",
        "error writing to stdin: stdin not enabled or closed",
      ],
      [
        "SendInput",
        { ...selector, input: { pty: "eA==" } },
        500,
        "internal",
        "error writing to tty: tty not assigned to process — input should be written to the stdin, not the tty",
      ],
      [
        "Update",
        { ...selector, pty: { size: { cols: 1, rows: 2 } } },
        500,
        "internal",
        "error resizing tty: tty not assigned to process",
      ],
      ["SendSignal", selector, 501, "unimplemented", "invalid signal: SIGNAL_UNSPECIFIED"],
    ] as const;
    for (const [method, body, status, code, message] of refusals) {
      assert.deepEqual(await server.call(method, body), { status, body: { code, message } });
    }
    assert.deepEqual(await server.call("CloseStdin", selector), { status: 200, body: {} });
    assert.deepEqual(await server.call("Update", selector), { status: 200, body: {} });
    assert.equal((await server.call("SendSignal", { ...selector, signal: "SIGNAL_SIGTERM" })).status, 200);
    assert.equal((await sleeper.rest()).end.status, "signal: terminated");
  });

  it("List shows what runs, with its tag and request", async () => {
    const tagged = await begin("sleep 60", { tag: "nap" });
    const process = { cmd: "/bin/sh", args: ["-c", "sleep 60"] };
    const list = { processes: [{ config: process, pid: tagged.pid, tag: "nap" }] };
    assert.deepEqual(await server.call("List", {}), { status: 200, body: list });
    assert.equal((await server.call("SendSignal", { process: { tag: "nap" }, signal: 9 })).status, 200);
    await tagged.rest();
    assert.deepEqual(await server.call("List", {}), { status: 200, body: {} });
    assert.equal((await server.call("SendSignal", { process: { tag: "nap" }, signal: 9 })).status, 404);
  });

  it("a killed process is gone when the call after the kill looks for it", async () => {
    const { pid, selector, rest } = await begin("sleep 60 & wait");
    assert.equal((await server.call("SendSignal", { ...selector, signal: "SIGNAL_SIGKILL" })).status, 200);
    assert.equal((await run("Start", sh(`kill -0 ${pid}`))).end.exitCode, 1);
    assert.deepEqual((await rest()).end, { exitCode: -1, status: "signal: killed", error: "signal: killed" });
  });

  it("a client that leaves does not end the command; another follows it by Connect", async () => {
    const leaving = new AbortController();
    const started = await begin("echo early; read x; echo got $x", {}, { signal: leaving.signal });
    await started.stream.next();
    leaving.abort();
    await assert.rejects(started.stream.next());
    const follower = server.stream("Connect", started.selector);
    assert.equal((await follower.next()).value?.message.event.start.pid, started.pid);
    await server.call("SendInput", {
      ...started.selector,
      input: { stdin: Buffer.from("it\n").toString("base64") },
    });
    const { stdout, end } = digest(await Array.fromAsync(follower));
    assert.equal(stdout, "got it\n", "no output from before is replayed");
    assert.equal(end.status, "exit status 0");
  });

  it("after the end Connect answers with the end for a while, then not_found", async () => {
    const { pid } = await run("Start", sh("echo gone; exit 5"));
    const late = await run("Connect", { process: { pid } });
    assert.deepEqual(late.names, ["start", "end"]);
    assert.equal(late.end.exitCode, 5);
    await sleep(1100);
    const later = await run("Connect", { process: { pid } });
    assert.deepEqual(later.trailer, {
      error: { code: "not_found", message: `process with pid ${pid} not found` },
    });
  });

  it("a follower that does not read holds the command back until it leaves", async () => {
    const started = await begin("read go; head -c 16000000 /dev/zero; echo end >&2");
    const leaving = new AbortController();
    const idle = server.stream("Connect", started.selector, { signal: leaving.signal });
    await idle.next();
    await server.call("SendInput", { ...started.selector, input: { stdin: "Cg==" } });
    const all = started.rest();
    assert.equal(await Promise.race([all.then(() => "finished"), sleep(1000, "held back")]), "held back");
    leaving.abort();
    await assert.rejects(Array.fromAsync(idle));
    const { stdout, stderr } = await all;
    assert.equal(stdout.length, 16_000_000);
    assert.equal(stderr, "end\n");
  });

  it("Connect-Timeout-Ms ends the stream and the command, watched or not", async () => {
    const headers = { "connect-timeout-ms": "300" };
    const began = Date.now();
    const watched = await run("Start", sh("echo $$; exec sleep 60"), { headers });
    assert.deepEqual(watched.trailer, {
      error: { code: "deadline_exceeded", message: "context deadline exceeded" },
    });
    assert(!watched.names.includes("end"));
    assert(Date.now() - began < 5000);

    const leaving = new AbortController();
    const unwatched = await begin("exec sleep 60", {}, { headers, signal: leaving.signal });
    leaving.abort();
    await sleep(500);
    const { end } = await run("Connect", unwatched.selector);
    assert.deepEqual(end, { exitCode: -1, status: "signal: killed", error: "signal: killed" });

    const bad = await run("Start", sh("true"), { headers: { "connect-timeout-ms": "soon" } });
    assert.equal(bad.trailer.error.code, "invalid_argument");
  });

  it("the deadline of Connect ends its stream alone", async () => {
    const started = await begin("read x; echo alive");
    const { trailer } = await run("Connect", started.selector, { headers: { "connect-timeout-ms": "200" } });
    assert.equal(trailer.error.code, "deadline_exceeded");
    await server.call("CloseStdin", started.selector);
    assert.equal((await started.rest()).stdout, "alive\n");
  });

  it("a silent stream gets keepalives at the client's interval", async () => {
    const said = await run("Start", sh("sleep 1.3; echo late"), {
      headers: { "keepalive-ping-interval": "1" },
    });
    assert.deepEqual(said.names, ["start", "keepalive", "data", "end"]);
  });

  it("the binary codec and client streams work as well", async () => {
    const transport = createConnectTransport({
      baseUrl: server.server.url,
      httpVersion: "1.1",
      useBinaryFormat: true,
      interceptors: [
        (next) => (request) => {
          request.header.set("E2b-Sandbox-Id", server.sandbox.record.id);
          request.header.set("E2b-Sandbox-Port", String(ENVD_PORT));
          return next(request);
        },
      ],
    });
    const client = createClient(Process, transport);
    let pid = 0;
    let stdout = "";
    let status = "";
    for await (const { event } of client.start({ process: { cmd: "cat" } })) {
      const said = event?.event;
      if (said?.case === "start") {
        pid = said.value.pid;
        await client.streamInput(
          (async function* () {
            yield {
              event: {
                case: "start" as const,
                value: { process: { selector: { case: "pid" as const, value: pid } } },
              },
            };
            for (const part of ["a", "b"]) {
              const value = { input: { input: { case: "stdin" as const, value: Buffer.from(part) } } };
              yield { event: { case: "data" as const, value } };
            }
          })(),
        );
        await client.closeStdin({ process: { selector: { case: "pid", value: pid } } });
      } else if (said?.case === "data") stdout += Buffer.from(said.value.output.value ?? []).toString();
      else if (said?.case === "end") status = said.value.status;
    }
    assert.equal(stdout, "ab");
    assert.equal(status, "exit status 0");
    await assert.rejects(
      client.sendSignal({ process: { selector: { case: "tag", value: "x" } } }),
      (error) => {
        return error instanceof ConnectError && error.code === Code.NotFound;
      },
    );
  });

  it("an invalid request is refused, and the next one is served", async () => {
    const post = (method: string, type: string, body: string | Uint8Array<ArrayBuffer>) =>
      server.fetch(`/process.Process/${method}`, { method: "POST", headers: { "content-type": type }, body });
    const good = envelope(sh("true"));
    const streams: [string, Uint8Array<ArrayBuffer>][] = [
      ["no frame", new Uint8Array()],
      ["a truncated header", good.subarray(0, 3)],
      ["a truncated message", good.subarray(0, 20)],
      ["two messages", Buffer.concat([good, good])],
      ["no JSON", Buffer.from("\0\0\0\0\x03{]}", "latin1")],
      ["a wrong type", envelope({ process: { cmd: 5 } })],
      ["an absurd length", Buffer.from("\0\xff\xff\xff\xff{}", "latin1")],
      ["no program", envelope({ process: {} })],
      ["nothing", envelope({})],
      ["a NUL byte", envelope({ process: { cmd: "echo", args: ["a\0b"] } })],
    ];
    for (const [name, body] of streams) {
      const response = await post("Start", "application/connect+json", body);
      assert.equal(response.status, 200, name);
      const received = await Array.fromAsync(frames(response.body ?? new ReadableStream()));
      assert.equal(received.length, 1, name);
      assert.match(
        received[0]?.message.error?.code,
        /^(invalid_argument|unimplemented|resource_exhausted)$/,
        name,
      );
    }
    for (const body of ["", "{", '{"process":{"pid":"x"}}', '{"process":{"pid":-1}}', "[]"]) {
      const { status } = await post("SendSignal", "application/json", body);
      assert(status >= 400 && status < 502 && status !== 500, `${body}: ${status}`);
    }
    assert.equal((await post("Start", "text/plain", "x")).status, 415);
    assert.equal((await server.fetch("/process.Process/Start")).status, 405);
    assert.equal((await run("Start", sh("echo served"))).stdout, "served\n");
  });

  it("a request in pieces and a compressed one are served as a plain one", async () => {
    const request = envelope(sh("echo served"));
    const pieces = async function* () {
      for (const piece of [request.subarray(0, 3), request.subarray(3, 20), request.subarray(20)]) {
        yield piece;
        await sleep(5);
      }
    };
    const packed = gzipSync(request.subarray(5));
    const compressed = Buffer.concat([Buffer.from([1, 0, 0, 0, packed.length]), packed]);
    const bodies: [NonNullable<RequestInit["body"]>, Readonly<Record<string, string>>][] = [
      [ReadableStream.from(pieces()), {}],
      [compressed, { "connect-content-encoding": "gzip" }],
    ];
    for (const [body, headers] of bodies) {
      const response = await server.fetch("/process.Process/Start", {
        method: "POST",
        headers: { "content-type": "application/connect+json", ...headers },
        body,
        duplex: "half",
      });
      const said = digest(await Array.fromAsync(frames(response.body ?? new ReadableStream())));
      assert.deepEqual([said.stdout, said.trailer], ["served\n", {}]);
    }
  });

  it("every command that was started is counted in one status, kill races included", async () => {
    const count = async () => {
      const names = [
        "started_total",
        'finished_total{status="ok"}',
        'finished_total{status="error"}',
        'finished_total{status="killed"}',
      ];
      const [started = 0, ...finished] = await Promise.all(names.map((name) => server.metric(name)));
      return { started, finished };
    };
    const earlier = await count();
    await Promise.all(
      Array.from({ length: 40 }, async (_, index) => {
        const { selector, rest } = await begin(`sleep 0.0${index % 5}; exit ${index % 2}`);
        if (index % 4 > 0) await server.call("SendSignal", { ...selector, signal: index % 4 === 1 ? 15 : 9 });
        await rest();
      }),
    );
    const { started, finished } = await count();
    assert.equal(started - earlier.started, 40);
    assert.equal(
      finished.reduce((sum, value) => sum + value),
      started,
    );
    assert.equal(await server.metric("active"), 0);
  });
});

it("the death of a sandbox cuts its streams without an end, and its commands count as killed", async () => {
  await using server = await startCommandsServer();
  const stream = server.stream("Start", sh("sleep 60"));
  await stream.next();
  assert.equal(await server.metric("active"), 1);
  const cut = assert.rejects(stream.next());
  await server.server.sandboxes.kill(server.sandbox.record.id);
  await cut;
  assert.equal(await server.metric("active"), 0);
  assert.equal(await server.metric('finished_total{status="killed"}'), 1);
});

it("an unexpected error is `internal error` and nothing more, in answers and in streams", async () => {
  const bug = (): never => {
    throw new TypeError("the secret is 42");
  };
  const broken = definePlugin({
    name: "broken",
    setup(plugin) {
      plugin.rpc("api").service(Process, {
        list: bug,
        async *connect() {
          yield create(ConnectResponseSchema, {});
          bug();
        },
        start: bug,
      });
    },
  });
  await using server = await startTestServer({ plugins: [[broken], [memoryBackend()]] });
  for (const useBinaryFormat of [true, false]) {
    const options = { baseUrl: server.url, httpVersion: "1.1", useBinaryFormat } as const;
    const client = createClient(Process, createConnectTransport(options));
    for (const call of [
      () => client.list({}),
      () => Array.fromAsync(client.start({})),
      () => Array.fromAsync(client.connect({})),
    ]) {
      await assert.rejects(call, (error) => {
        assert(error instanceof ConnectError);
        assert.deepEqual([error.code, error.rawMessage], [Code.Internal, "internal error"]);
        return true;
      });
    }
  }
});

it(
  "what clients have not taken counts as held, until they leave: a stream that finds no room for more ends",
  { timeout: 60_000 },
  async () => {
    await using server = await startCommandsServer(
      {},
      { http: { maxHeldBodies: "1MiB", drainTimeout: "100ms" } },
    );
    const leave = new AbortController();
    // The system takes the first megabytes of each.
    const unread = [1, 2].map(() =>
      server.stream("Start", sh("head -c 50000000 /dev/zero"), { signal: leave.signal }),
    );
    for (const stream of unread) await stream.next();
    const endless = await Array.fromAsync(
      server.stream("Start", sh("head -c 100000000 /dev/zero")),
      ({ flags, message }) => (flags === 2 ? message.error : undefined),
    );
    assert.deepEqual(endless.at(-1), {
      code: "unavailable",
      message: "large bodies of other requests fill http.maxHeldBodies",
    });
    const little = digest(await Array.fromAsync(server.stream("Start", sh("echo hi"))));
    assert.equal(little.stdout, "hi\n", "a stream of little");
    leave.abort();
    const whole = async (): Promise<number> =>
      digest(await Array.fromAsync(server.stream("Start", sh("head -c 3000000 /dev/zero")))).stdout.length;
    for (let tries = 0; (await whole()) < 3_000_000; tries++) assert.ok(tries < 50, "they still hold it");
  },
);
