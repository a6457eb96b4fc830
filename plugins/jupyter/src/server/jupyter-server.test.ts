import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { eventually, SeededRandom } from "@coppice/core/testing";
import { encodeFrame, V1_PROTOCOL } from "./client-frame.js";
import { startCodeServer, type CodeServer } from "../testing/code-server.js";
import { JupyterServer, type KernelModel } from "../testing/jupyter-server.js";
import { JupyterSocket } from "../testing/jupyter-socket.js";

const QUEUE_BYTES = 256 * 1024;
const REPLAY_BYTES = 100 * 1024;

let served: JupyterServer;
let own: CodeServer;

before(async () => {
  served = await JupyterServer.start({
    maxClientQueue: `${QUEUE_BYTES}B`,
    slowClientTimeout: "3s",
    slowLookerTimeout: "500ms",
    replay: "1s",
    maxReplay: `${REPLAY_BYTES}B`,
  });
  own = served.code;
});

after(() => served[Symbol.asyncDispose]());

const api: JupyterServer["api"] = (...words) => served.api(...words);
const root: JupyterServer["root"] = (...words) => served.root(...words);
const startKernel: JupyterServer["startKernel"] = () => served.startKernel();
const connect: JupyterServer["connect"] = (...words) => served.connect(...words);

const modelOf = async (id: string): Promise<KernelModel> =>
  (await (await api(`/api/kernels/${id}`)).json()) as KernelModel;

async function metric(name: string): Promise<number> {
  const page = await (await fetch(`${own.server.urls["ops"]}/metrics`)).text();
  const line = page.split("\n").find((candidate) => candidate.startsWith(`coppice_jupyter_${name} `));
  return Number(line?.split(" ").at(-1) ?? Number.NaN);
}

describe("hostile clients", () => {
  it("mutated messages end their connection at most; other clients and the kernel are unaffected", async () => {
    await using kernel = await startKernel();
    using bystander = await connect(kernel.id, "bystander");
    const random = new SeededRandom(23);
    let refused = 0;
    for (let round = 0; round < 60; round++) {
      const isV1 = random.below(2) === 0;
      const hostile = await connect(kernel.id, undefined, isV1 ? [V1_PROTOCOL] : []);
      for (let count = 0; count < 10; count++) {
        const header = {
          msg_id: randomUUID(),
          msg_type: ["kernel_info_request", "input_reply", "x", "shutdown"][random.below(4)],
          session: "h",
        };
        const { data, isBinary } = encodeFrame(
          {
            channel: (["shell", "control", "stdin", "iopub"] as const)[random.below(4)] ?? "shell",
            id: header.msg_id,
            type: String(header.msg_type),
            session: "h",
            header: Buffer.from(JSON.stringify(header)),
            parentHeader: Buffer.from("{}"),
            metadata: Buffer.from("{}"),
            content: Buffer.from('{"x": [1, {"y": "é"}]}'),
            buffers: random.below(2) === 0 ? [] : [Buffer.alloc(random.below(50), random.below(256))],
          },
          isV1 ? "v1" : "json",
        );
        for (let change = random.below(4); change > 0; change--)
          data[random.below(data.length)] = random.below(256);
        hostile.socket.send(data, { binary: random.below(10) === 0 ? !isBinary : isBinary });
      }
      hostile.socket.send("{}");
      const code = await hostile.closed;
      assert.ok(code === 1007 || code === 1006, `closed with ${code}`);
      refused++;
    }
    assert.equal(refused, 60);
    const id = bystander.execute("print('untouched')");
    assert.equal((await bystander.end(id)).content["status"], "ok");
    assert.equal(bystander.textOf(id), "untouched\n");
    assert.ok(
      !bystander.received.some(
        ({ channel, parent_header }) => channel !== "iopub" && parent_header.msg_id !== id,
      ),
    );
    assert.ok((await metric("refused_frames_total")) >= 50);
  });

  it("a message larger than the limit ends its connection, one on no channel is ignored", async () => {
    await using kernel = await startKernel();
    using socket = await connect(kernel.id);
    socket.send("kernel_info_request", {}, { channel: "heartbeat" });
    socket.send("status", { execution_state: "dead" }, { channel: "iopub" });
    const id = socket.execute("1");
    await socket.end(id);
    assert.ok(!socket.received.some(({ content }) => content["execution_state"] === "dead"));
    socket.socket.send(`{"x": "${"x".repeat(1_100_000)}"}`);
    assert.equal(await socket.closed, 1009);
  });

  it("unanswered requests beyond the limit end the connection, not the kernel", async () => {
    await using kernel = await startKernel();
    using socket = await connect(kernel.id);
    socket.execute("import time; time.sleep(1)");
    for (let count = 0; count < 60; count++) socket.send("kernel_info_request", {});
    assert.equal(await socket.closed, 1013);
    using next = await connect(kernel.id);
    assert.equal((await next.end(next.execute("1"))).content["status"], "ok");
  });

  it("the id of another client's request is refused, and its owner alone gets its answers", async () => {
    await using kernel = await startKernel();
    using one = await connect(kernel.id);
    using two = await connect(kernel.id);
    const id = one.execute("import time; time.sleep(0.3); print('mine')");
    await one.find(
      "busy",
      ({ header, parent_header }) => header.msg_type === "execute_input" && parent_header.msg_id === id,
    );
    two.send("execute_request", { code: "print('stolen')", silent: false }, { id });
    await one.end(id);
    await two.end(two.execute("1"));
    assert.equal(one.textOf(id), "mine\n");
    assert.ok(
      !two.received.some(({ channel, parent_header }) => channel === "shell" && parent_header.msg_id === id),
    );
  });

  it("a client cannot answer for the code of /execute", async () => {
    const open = await own.create();
    const run = open.run("import time; time.sleep(0.7); print('whole')");
    const [context] = (await (await open.fetch("/contexts")).json()) as { id: string }[];
    using socket = await JupyterSocket.open(
      `${root(open.live.record.id).replace(/^http/, "ws")}/api/kernels/${context?.id}/channels`,
    );
    const { header, parent_header } = await socket.find(
      "a message of the execution",
      ({ header: { msg_type } }) => msg_type === "execute_input",
    );
    socket.send(
      "execute_request",
      { code: "print('forged')", silent: false },
      { id: String(parent_header.msg_id) },
    );
    const session = (parent_header as { session?: string }).session ?? "";
    assert.notEqual(session, header.session);
    socket.send("execute_request", { code: "print('forged')", silent: false }, { session });
    assert.equal((await run).text("stdout"), "whole\n");
    assert.equal((await open.run("print('after')")).text("stdout"), "after\n");
    await socket.end(socket.execute("1"));
    assert.ok(!socket.received.some(({ content }) => content["text"] === "forged\n"));
    await own.server.sandboxes.kill(open.live.record.id);
    assert.ok([1006, 1000].includes(await socket.closed));
  });

  it("an aborted execution that waits behind a client's code never runs, and does not affect that", async () => {
    const open = await own.create();
    for (const [language, code, waiting, check] of [
      ["python", "import time; time.sleep(1.5); print('whole')", "print('never')", "print('next')"],
      [
        "javascript",
        "await new Promise((done) => setTimeout(done, 1500)); console.log('whole')",
        "console.log('never')",
        "console.log('next')",
      ],
      ["bash", "sleep 1.5; echo whole", "echo never", "echo next"],
    ] as const) {
      const made = await open.fetch("/contexts", { method: "POST", body: JSON.stringify({ language }) });
      const { id } = (await made.json()) as { id: string };
      using socket = await JupyterSocket.open(
        `${root(open.live.record.id).replace(/^http/, "ws")}/api/kernels/${id}/channels`,
      );
      const running = socket.execute(code);
      await socket.find(
        "the client's code",
        ({ header, parent_header }) =>
          header.msg_type === "execute_input" && parent_header.msg_id === running,
      );
      const client = new AbortController();
      const given = open.fetch("/execute", {
        method: "POST",
        body: JSON.stringify({ code: waiting, context_id: id }),
        signal: client.signal,
      });
      await given;
      client.abort();
      const next = await open.run(check, { context_id: id });
      assert.equal(next.text("stdout"), "next\n", language);
      assert.equal((await socket.end(running)).content["status"], "ok", language);
      assert.equal(socket.textOf(running), "whole\n", language);
      const printed = socket.received.map(({ content }) => content["text"]).join("");
      assert.ok(!printed.includes("never"), `${language}: ${printed}`);
    }
    await own.server.sandboxes.kill(open.live.record.id);
  });

  it("the same ids in two kernels stay apart", async () => {
    await using first = await startKernel();
    await using second = await startKernel();
    using one = await connect(first.id, "same");
    using two = await connect(second.id, "same");
    for (let round = 0; round < 10; round++) {
      const id = `request-${round}`;
      for (const [socket, name] of [
        [one, "one"],
        [two, "two"],
      ] as const)
        socket.send("execute_request", { code: `print('${name}')`, silent: false }, { id });
      await Promise.all([one.end(id), two.end(id)]);
      assert.equal(one.textOf(id), "one\n");
      assert.equal(two.textOf(id), "two\n");
    }
  });
});

describe("slow clients", () => {
  it("one without own output is closed, and the owner of the output gets all of it", async () => {
    await using kernel = await startKernel();
    using owner = await connect(kernel.id);
    using looker = await connect(kernel.id);
    await looker.end(looker.execute("1"));
    const slowBefore = await metric("slow_clients_total");
    const id = owner.execute(
      "import time\nprint('begun', flush=True)\ntime.sleep(0.2)\nprint('x' * 20_000_000)",
    );
    // Paused only now: the server soon closes a paused client that has nothing to read.
    await owner.find("its beginning", ({ content }) => content["text"] === "begun\n");
    looker.socket.pause();
    await owner.end(id);
    assert.equal(owner.textOf(id).length, "begun\n".length + 20_000_001);
    looker.socket.resume();
    assert.ok([1006, 1013].includes(await looker.closed));
    await eventually("it was counted", async () => (await metric("slow_clients_total")) > slowBefore);
  });

  it("one whose own output waits slows its code, and misses nothing", async () => {
    await using kernel = await startKernel();
    using owner = await connect(kernel.id);
    await owner.end(owner.execute("import time"));
    const baseBytes = process.memoryUsage().rss;
    const id = owner.execute("print('x' * 60_000_000)");
    let peakBytes = 0;
    for (let round = 0; round < 10; round++) {
      owner.socket.pause();
      await delay(100);
      peakBytes = Math.max(peakBytes, process.memoryUsage().rss);
      owner.socket.resume();
      await delay(5);
    }
    await owner.end(id);
    assert.equal(owner.textOf(id).length, 60_000_001);
    const grownMiB = (peakBytes - baseBytes) / 2 ** 20;
    assert.ok(grownMiB < 100, `memory grew by ${grownMiB.toFixed(0)} MiB while the client read nothing`);
  });

  it("one that stops reading is closed, and the kernel is free again", async () => {
    await using kernel = await startKernel();
    using stuck = await connect(kernel.id);
    await stuck.end(stuck.execute("1"));
    stuck.socket.pause();
    stuck.execute("print('x' * 60_000_000)");
    await delay(200);
    // The other client may be too slow for that output as well, and then reconnects.
    for (let attempt = 1; ; attempt += 1) {
      using other = await connect(kernel.id);
      try {
        assert.equal((await other.end(other.execute("1"))).content["status"], "ok");
        break;
      } catch (error) {
        if (attempt === 5 || !String(error).includes("the connection is closed")) throw error;
      }
    }
  });
});

describe("lost clients", () => {
  it("the same session gets what it missed, another one does not", async () => {
    await using kernel = await startKernel();
    const first = await connect(kernel.id, "mine");
    const id = first.execute("import time\nfor i in range(5): print(i, flush=True); time.sleep(0.1)");
    await first.find("output", ({ content }) => content["text"] === "0\n");
    first.socket.terminate();
    await first.closed;
    await delay(250);
    using stranger = await connect(kernel.id, "other");
    using second = await connect(kernel.id, "mine");
    await second.end(id);
    assert.equal(first.textOf(id) + second.textOf(id), "0\n1\n2\n3\n4\n");
    await delay(100);
    assert.ok(!stranger.received.some(({ channel }) => channel !== "iopub"));
    assert.ok(!stranger.textOf(id).startsWith("1"));
  });

  it("beyond the limit only the ends and a note are kept", async () => {
    await using kernel = await startKernel();
    const first = await connect(kernel.id, "mine");
    const id = first.execute(
      "import time; time.sleep(0.3)\nfor i in range(50): print('x' * 10_000, flush=True)",
    );
    await first.find("busy", ({ header }) => header.msg_type === "execute_input");
    first.socket.terminate();
    await first.closed;
    await delay(700);
    using second = await connect(kernel.id, "mine");
    assert.equal((await second.end(id)).content["status"], "ok");
    assert.ok(second.textOf(id).length <= REPLAY_BYTES);
    assert.match(second.textOf(id, "stderr"), /output missing: more than 102400 bytes/);
  });

  it("after a while nothing is kept", async () => {
    await using kernel = await startKernel();
    const first = await connect(kernel.id, "mine");
    const missed = first.execute("import time; time.sleep(0.3); print('missed')");
    await first.find("busy", ({ header }) => header.msg_type === "execute_input");
    first.socket.terminate();
    await first.closed;
    await delay(1300);
    using second = await connect(kernel.id, "mine");
    await second.end(second.execute("2"));
    assert.equal(second.textOf(missed), "");
    assert.equal(second.received.filter(({ header }) => header.msg_type === "execute_reply").length, 1);
    assert.equal((await modelOf(kernel.id)).connections, 1);
  });

  it("a second connection of a session takes over from the first", async () => {
    await using kernel = await startKernel();
    using first = await connect(kernel.id, "mine");
    using second = await connect(kernel.id, "mine");
    assert.equal(await first.closed, 1000);
    assert.equal((await second.end(second.execute("1"))).content["status"], "ok");
    assert.equal((await modelOf(kernel.id)).connections, 1);
  });

  it("code that waits for input from a client that never returns is interrupted", async () => {
    await using kernel = await startKernel();
    const asked = await connect(kernel.id, "mine");
    asked.execute("input()", { allow_stdin: true });
    await asked.find("question", ({ header }) => header.msg_type === "input_request");
    asked.socket.terminate();
    using other = await connect(kernel.id);
    assert.equal((await other.end(other.execute("'free'"))).content["status"], "ok");
    const gone = await connect(kernel.id);
    const id = gone.execute("import time; time.sleep(0.2); input()", { allow_stdin: true });
    await gone.find(
      "start",
      ({ header, parent_header }) => header.msg_type === "execute_input" && parent_header.msg_id === id,
    );
    gone.socket.terminate();
    assert.equal((await other.end(other.execute("'free'"))).content["status"], "ok");
  });

  it("a client that does not answer pings is gone", async () => {
    await using kernel = await startKernel();
    using silent = await connect(kernel.id);
    await silent.end(silent.execute("1"));
    assert.equal((await modelOf(kernel.id)).connections, 1);
    silent.socket.pause();
    await eventually(
      "the silent client is dropped",
      async () => (await modelOf(kernel.id)).connections === 0,
    );
  });
});

describe("the life of a kernel", () => {
  const state = (wanted: string) => (message: { readonly content: Readonly<Record<string, unknown>> }) =>
    message.content["execution_state"] === wanted;

  it("one that keeps dying is restarted a few times, then reported dead; a restart brings it back", async () => {
    await using kernel = await startKernel();
    using socket = await connect(kernel.id);
    await socket.end(socket.execute("1"));
    const restarts = (): number => socket.received.filter(state("restarting")).length;
    for (let round = 1; round <= 2; round++) {
      socket.execute("import os; os._exit(1)");
      await eventually(`restart ${round}`, async () => restarts() === round);
      await socket.end(socket.execute("1"));
    }
    socket.execute("import os; os._exit(1)");
    await socket.find("its end", state("dead"));
    assert.equal((await modelOf(kernel.id)).execution_state, "dead");
    assert.equal((await api(`/api/kernels/${kernel.id}/restart`, { method: "POST" })).status, 200);
    assert.equal((await socket.end(socket.execute("1"))).content["execution_count"], 1);
  });

  it("a requested restart is not shown as a death; pending requests end", async () => {
    await using kernel = await startKernel();
    using asking = await connect(kernel.id);
    using other = await connect(kernel.id);
    await asking.end(asking.execute("1"));
    const running = other.execute("import time; time.sleep(60)");
    const waiting = asking.send("complete_request", { code: "pri", cursor_pos: 3 });
    await asking.find("its run", ({ parent_header }) => parent_header.msg_id === running);
    assert.equal((await api(`/api/kernels/${kernel.id}/restart`, { method: "POST" })).status, 200);
    assert.deepEqual((await other.end(running)).content, { status: "aborted" });
    assert.equal((await asking.end(waiting)).header.msg_type, "complete_reply");
    for (const client of [asking, other]) {
      const told = await client.find("the restart", ({ header }) => header.msg_type === "shutdown_reply");
      assert.deepEqual([told.channel, told.content], ["iopub", { status: "ok", restart: true }]);
      assert.equal((await client.end(client.execute("1"))).content["status"], "ok");
      assert.ok(!client.received.some(state("restarting")));
    }
  });

  it("a death without clients costs nothing until one connects", async () => {
    const open = await own.create();
    const [context] = (await (await open.fetch("/contexts")).json()) as { id: string }[];
    const url = `${root(open.live.record.id)}/api/kernels/${context?.id}`;
    const model = async (): Promise<KernelModel> => (await (await fetch(url)).json()) as KernelModel;
    await open.run("x = 1");
    assert.equal((await model()).execution_state, "idle");
    await open.run("import os; os._exit(1)");
    await eventually("the kernel is not there", async () => (await model()).execution_state === "starting");
    using socket = await JupyterSocket.open(`${url.replace(/^http/, "ws")}/channels`);
    assert.equal((await socket.end(socket.execute("1"))).content["status"], "ok");
    await own.server.sandboxes.kill(open.live.record.id);
  });

  it("a removed kernel is dead for its clients and has no session", async () => {
    const kernel = await startKernel();
    using socket = await connect(kernel.id);
    await socket.end(socket.execute("1"));
    assert.equal((await api(`/api/kernels/${kernel.id}`, { method: "DELETE" })).status, 204);
    await socket.find("its end", state("dead"));
    assert.equal(await socket.closed, 1000);
    assert.equal((await api(`/api/kernels/${kernel.id}`)).status, 404);
  });

  it("control is a channel of its own: it is answered while a cell runs, and can interrupt it", async () => {
    await using kernel = await startKernel();
    using socket = await connect(kernel.id);
    const cell = socket.execute("print('on', flush=True)\nwhile True: pass");
    await socket.find("its start", ({ header, parent_header }) => {
      return header.msg_type === "stream" && parent_header.msg_id === cell;
    });
    for (const type of ["kernel_info", "interrupt"]) {
      const asked = socket.send(`${type}_request`, {}, { channel: "control" });
      const reply = await socket.end(asked);
      assert.deepEqual(
        [reply.channel, reply.header.msg_type, reply.content["status"]],
        ["control", `${type}_reply`, "ok"],
      );
    }
    assert.equal((await socket.end(cell)).content["ename"], "KeyboardInterrupt");
  });

  it("busy is reported for as long as a request runs", async () => {
    await using kernel = await startKernel();
    using socket = await connect(kernel.id);
    const id = socket.execute("import time; time.sleep(0.5)");
    await socket.find(
      "busy",
      ({ header, parent_header }) => header.msg_type === "execute_input" && parent_header.msg_id === id,
    );
    assert.equal((await modelOf(kernel.id)).execution_state, "busy");
    await socket.end(id);
    assert.equal((await modelOf(kernel.id)).execution_state, "idle");
  });
});

it("switched off, its routes are absent and port 8888 is the sandbox's own", async () => {
  await using off = await startCodeServer({ server: { enabled: false } });
  const { live } = await off.create();
  assert.equal(
    (await fetch(`${off.server.url}/sandboxes/${live.record.id}/jupyter/api/kernels`)).status,
    404,
  );
  const headers = { "e2b-sandbox-id": live.record.id, "e2b-sandbox-port": "8888" };
  const response = await fetch(`${off.server.url}/api/kernels`, { headers });
  assert.match(await response.text(), /port is not open/);
});
