import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { startCodeServer, type CodeSandbox, type CodeServer } from "../testing/code-server.js";

let own: CodeServer;
let sandbox: CodeSandbox;

before(async () => {
  own = await startCodeServer({ interruptGrace: "2s", maxContexts: 4, maxWaiting: 2 });
  sandbox = await own.create({ GLOBAL: "g'lobal\"" });
});

after(() => own[Symbol.asyncDispose]());

const leave = (code: string, afterMs: number): Promise<void> => sandbox.leave(code, afterMs);
const post = (path: string, body: string): Promise<Response> => sandbox.fetch(path, { method: "POST", body });
const metric = (name: string, server = own): Promise<number> => server.metric(name);

describe("environment", () => {
  it("the sandbox's variables are there, those of an execution only while it runs", async () => {
    const variables = { QUOTED: "a'b\"c\\n$(x)\né", GLOBAL: "other" };
    const code = "import os\nprint(os.environ['QUOTED'], os.environ['GLOBAL'])\n1/0";
    const ran = await sandbox.run(code, { env_vars: variables });
    assert.equal(ran.text("stdout"), `${variables.QUOTED} other\n`);
    assert.match(String(ran.error?.["traceback"]), /3 1\/0/, "line numbers are the user's");
    const { results } = await sandbox.run("(os.environ.get('QUOTED'), os.environ['GLOBAL'])");
    assert.equal(results[0]?.["text"], "(None, 'g\\'lobal\"')");
  });

  it("code runs in the home, in its own namespace, with an empty stdin", async () => {
    const { results } = await sandbox.run(
      "import sys\n[os.path.basename(os.getcwd()), sys.argv, sys.path.count(''), sys.stdin.read()]",
    );
    assert.deepEqual(results[0]?.["json"], ["user", [""], 1, ""]);
    const leaked = await sandbox.run(
      "[name for name in os.environ if 'COPPICE' in name and name != 'COPPICE_SANDBOX_ROOT']",
    );
    assert.deepEqual(leaked.results[0]?.["json"], []);
  });
});

describe("endings", () => {
  it("a client that leaves interrupts its code, and the next code runs at once", async () => {
    await sandbox.run("kept = 1");
    for (const code of [
      "while True: pass",
      "import time; time.sleep(100)",
      "import subprocess; subprocess.run(['sleep', '100'])",
      "while True: print('x' * 1000)",
    ]) {
      await leave(code, 200);
      const startedMs = performance.now();
      assert.equal((await sandbox.run("kept")).results[0]?.["text"], "1", code);
      assert.ok(
        performance.now() - startedMs < 30_000,
        `${code}: the next execution waited ${performance.now() - startedMs} ms`,
      );
    }
  });

  it("leaving at any moment never makes the next execution hang or lose its state", async () => {
    for (let round = 0; round < 25; round++) {
      await leave("while True: pass", (round * 7) % 30);
      assert.equal((await sandbox.run("kept")).results[0]?.["text"], "1", `round ${round}`);
    }
  });

  it("code that ignores its interrupt is killed, and the context works again", async () => {
    const code =
      "import time\nwhile True:\n  try:\n    while True: time.sleep(0.01)\n  except BaseException: pass";
    await leave(code, 200);
    assert.equal((await sandbox.run("'kept' in globals()")).results[0]?.["text"], "False");
  });

  it("a kernel that an earlier cell blocks is replaced once a client has left", async () => {
    await sandbox.run(
      "import asyncio, time\ndef block():\n    open('blocked', 'w').close()\n    time.sleep(1000)\n" +
        "kept = asyncio.get_running_loop().call_later(0.01, block)",
    );
    for (let looks = 0; ; looks++) {
      if ((await sandbox.run("[ -e blocked ]", { language: "bash" })).error === undefined) break;
      assert.ok(looks < 100, "the kernel is blocked");
    }
    await leave("kept", 100);
    assert.equal((await sandbox.run("'kept' in globals()")).results[0]?.["text"], "False");
  });

  it("a kernel that dies ends the execution with an error, and the next one starts in the same folder", async () => {
    const died = await sandbox.run("import os\nos._exit(1)");
    assert.deepEqual(died.error, {
      type: "error",
      name: "ContextRestarting",
      value: "Context was restarted",
      traceback: "",
    });
    const next = await sandbox.run("import os\n(os.path.basename(os.getcwd()), 'g' in os.environ['GLOBAL'])");
    assert.equal(next.lines[0]?.["execution_count"], 1);
    assert.equal(next.results[0]?.["text"], "('user', True)");
  });

  it("exit() ends the kernel, not the context", async () => {
    assert.equal((await sandbox.run("gone = 1\nexit()")).error, undefined);
    assert.equal((await sandbox.run("'gone' in globals()")).results[0]?.["text"], "False");
  });

  it("executions of one context take turns in their order, contexts do not wait for each other", async () => {
    const { id } = (await (await post("/contexts", "{}")).json()) as { id: string };
    const order: string[] = [];
    const run = async (name: string, code: string, more?: object): Promise<void> => {
      const { error } = await sandbox.run(code, more);
      assert.equal(error, undefined, name);
      order.push(name);
    };
    const first = run("first", "import time\ntime.sleep(1)\nstep = 1");
    await delay(200);
    const second = run("second", "assert step == 1\nstep = 2");
    await delay(50);
    const third = run("third", "assert step == 2");
    await run("elsewhere", "1", { context_id: id });
    await Promise.all([first, second, third]);
    assert.deepEqual(order, ["elsewhere", "first", "second", "third"]);
    await sandbox.fetch(`/contexts/${id}`, { method: "DELETE" });
  });

  it("executions beyond the queue of a context are refused; a client that leaves frees its place", async () => {
    const { id } = (await (await post("/contexts", "{}")).json()) as { id: string };
    const refused = await metric("executions_refused_total");
    const leaving = new AbortController();
    const inContext = (code: string, signal = AbortSignal.timeout(20_000)): Promise<Response> =>
      sandbox.fetch("/execute", { method: "POST", body: JSON.stringify({ code, context_id: id }), signal });
    const first = await inContext("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)");
    const second = await inContext("turn = 'second'");
    const third = (await inContext("turn = 'third'", leaving.signal)).text().catch(() => "left");
    const fourth = await inContext("turn = 'fourth'");
    assert.deepEqual(
      [fourth.status, fourth.headers.get("retry-after"), await fourth.text()],
      [429, "1", `Context ${id} already has 2 executions waiting, which is the limit`],
    );
    assert.equal((await sandbox.run("1")).status, 200, "other contexts have queues of their own");
    leaving.abort();
    assert.equal(await third, "left");
    let fifth = await inContext("turn");
    for (let looks = 0; fifth.status === 429; looks++) {
      assert.ok(looks < 250, "the place is free");
      await delay(20);
      fifth = await inContext("turn");
    }
    assert.equal((await sandbox.run("open('go', 'w').close()")).error, undefined);
    assert.match(await fifth.text(), /"text": "second"/);
    await Promise.all([first.text(), second.text()]);
    assert.ok((await metric("executions_refused_total")) > refused);
    await sandbox.fetch(`/contexts/${id}`, { method: "DELETE" });
  });
});

describe("contexts", () => {
  it("the default one is listed from the start; others have their directory and state", async () => {
    const fresh = await own.create();
    const listed = (await (await fresh.fetch("/contexts")).json()) as {
      id: string;
      language: string;
      cwd: string;
    }[];
    assert.deepEqual(
      listed.map(({ language }) => language),
      ["python", "javascript"],
    );
    const made = await fresh.fetch("/contexts", {
      method: "POST",
      body: '{"language": " Python ", "cwd": "/"}',
    });
    assert.equal(made.status, 200);
    const context = (await made.json()) as { id: string };
    assert.deepEqual(context, { id: context.id, language: "python", cwd: "/" });
    assert.deepEqual(await (await fresh.fetch("/contexts")).json(), [...listed, context]);
    await fresh.run("own = 1", { context_id: context.id });
    assert.equal((await fresh.run("'own' in globals()")).results[0]?.["text"], "False");
    assert.equal((await fresh.run("1", { context_id: null, language: null, env_vars: null })).status, 200);
    await own.server.sandboxes.kill(fresh.live.record.id);
  });

  it("restart ends what runs and keeps id, directory and environment", async () => {
    const { id } = (await (await post("/contexts", '{"cwd": "/tmp"}')).json()) as { id: string };
    const running = sandbox.run("state = 1\nimport time\ntime.sleep(100)", { context_id: id });
    await delay(300);
    const restarted = await post(`/contexts/${id}/restart`, "");
    assert.equal(restarted.status, 200);
    assert.equal(await restarted.text(), "null");
    assert.equal((await running).error?.["name"], "UnexpectedEndOfExecution");
    const after = await sandbox.run(
      "import os\n[os.path.basename(os.getcwd()), 'state' in globals(), 'GLOBAL' in os.environ]",
      {
        context_id: id,
      },
    );
    assert.equal(after.lines[0]?.["execution_count"], 1);
    assert.deepEqual(after.results[0]?.["json"], ["tmp", false, true]);
    await sandbox.fetch(`/contexts/${id}`, { method: "DELETE" });
  });

  it("a removed context is gone, and a removed default one is made again", async () => {
    const [{ id } = { id: "" }] = (await (await sandbox.fetch("/contexts")).json()) as { id: string }[];
    const removed = await sandbox.fetch(`/contexts/${id}`, { method: "DELETE" });
    assert.equal(await removed.text(), "null");
    const gone = await sandbox.run("1", { context_id: id });
    assert.deepEqual([gone.status, gone.body], [404, `Context ${id} not found`]);
    assert.equal((await sandbox.run("1")).status, 200);
  });

  it("one too many is refused", async () => {
    const made: string[] = [];
    const fresh = await own.create();
    await fresh.fetch("/contexts");
    for (let count = 0; count < 2; count++) {
      made.push(
        ((await (await fresh.fetch("/contexts", { method: "POST", body: "{}" })).json()) as { id: string })
          .id,
      );
    }
    const refused = await fresh.fetch("/contexts", { method: "POST", body: "{}" });
    assert.equal(refused.status, 429);
    assert.match(await refused.text(), /^Failed to create context: .*4 contexts/);
    await own.server.sandboxes.kill(fresh.live.record.id);
  });

  it("contexts that are made at once are counted before they are there", async () => {
    const fresh = await own.create();
    const made = await Promise.all(
      Array.from({ length: 6 }, () => fresh.fetch("/contexts", { method: "POST", body: "{}" })),
    );
    const statuses = made.map(({ status }) => status).toSorted((one, other) => one - other);
    assert.deepEqual(statuses, [200, 200, 200, 200, 429, 429]);
    await own.server.sandboxes.kill(fresh.live.record.id);
  });

  it("a first use by many at once makes one default context", async () => {
    const fresh = await own.create();
    // The order of the two is undefined.
    const count = "a = globals().get('a', 0) + 1";
    const ran = await Promise.all([fresh.run(count), fresh.run(count), fresh.run(count)]);
    assert.ok(ran.every(({ error }) => error === undefined));
    assert.equal((await fresh.run("a")).results[0]?.["text"], "3");
    assert.equal(((await (await fresh.fetch("/contexts")).json()) as unknown[]).length, 2);
    await own.server.sandboxes.kill(fresh.live.record.id);
  });
});
