import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { startCodeServer, type CodeSandbox, type CodeServer } from "./testing/code-server.js";

const KEEPALIVE_MS = 400;

let own: CodeServer;
let sandbox: CodeSandbox;

before(async () => {
  own = await startCodeServer({
    keepalive: `${KEEPALIVE_MS}ms`,
    interruptGrace: "2s",
    maxContexts: 4,
    maxWaiting: 2,
    maxCode: "100000B",
    maxOutput: "20000000B",
  });
  sandbox = await own.create({ GLOBAL: "g'lobal\"" });
});

after(() => own[Symbol.asyncDispose]());

/** Starts code and goes away in the middle of it. */
async function leave(code: string, afterMs: number): Promise<void> {
  const client = new AbortController();
  const response = await sandbox.fetch("/execute", {
    method: "POST",
    body: JSON.stringify({ code }),
    signal: client.signal,
  });
  const reading = response.text().catch(() => undefined);
  await delay(afterMs);
  client.abort();
  await reading;
}

function isThere(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

const post = (path: string, body: string): Promise<Response> => sandbox.fetch(path, { method: "POST", body });

async function metric(name: string, { server }: CodeServer = own): Promise<number> {
  const page = await (await fetch(`${server.urls["ops"]}/metrics`)).text();
  const line = page.split("\n").find((candidate) => candidate.startsWith(`coppice_jupyter_${name} `));
  return Number(line?.split(" ").at(-1) ?? Number.NaN);
}

describe("results", () => {
  it("state stays from one execution to the next, and the count goes up", async () => {
    const first = await sandbox.run("x = 41");
    const second = await sandbox.run("x += 1\nx");
    assert.equal(second.results[0]?.["text"], "42");
    assert.equal(second.results[0]?.["is_main_result"], true);
    assert.equal(second.lines[0]?.type, "number_of_executions");
    assert.equal(
      Number(second.lines[0]?.["execution_count"]),
      Number(first.lines[0]?.["execution_count"]) + 1,
    );
  });

  it("numbers in results arrive as they were written", async () => {
    const { body } = await sandbox.run("{'a': 1.0, 'b': 12345678901234567890, 3: [None, True]}");
    assert.ok(body.includes('"json": {"a": 1.0, "b": 12345678901234567890, "3": [null, true]}'), body);
  });

  it("an error has name, value and a traceback without colours; one, and last", async () => {
    const { error, lines } = await sandbox.run("print('before')\n1/0");
    assert.equal(error?.["name"], "ZeroDivisionError");
    assert.equal(error["value"], "division by zero");
    assert.match(String(error["traceback"]), /1\/0/);
    assert.ok(!String(error["traceback"]).includes("\u001b"));
    assert.deepEqual(lines.map(({ type }) => type).slice(-3), ["stdout", "error", "end_of_execution"]);
  });

  it("a huge error keeps its name and how it begins", async () => {
    const { error } = await sandbox.run("raise ValueError('x' * 3_000_000)");
    assert.equal(error?.["name"], "ValueError");
    assert.match(String(error["value"]), /^x{500000,}\n\[truncated: \d{7} more bytes\]$/);
    assert.match(
      String(error["traceback"]),
      /----> 1 raise ValueError[^]*\n\[truncated: \d{7} more bytes\]$/,
    );
  });

  it("an exception group has its traceback, with those of its members", async () => {
    const { error, text } = await sandbox.run(
      "raise ExceptionGroup('both', [ValueError('a'), KeyError('b')])",
    );
    assert.deepEqual([error?.["name"], text("stderr")], ["ExceptionGroup", ""]);
    assert.match(String(error?.["traceback"]), /raise ExceptionGroup[^]*ValueError: a[^]*KeyError: 'b'/);
  });

  it("a value or an error that is too large for a message is cut, and the kernel's state stays", async () => {
    await using small = await startCodeServer({ maxMessage: "4MiB" });
    const other = await small.create();
    const long = 5_000_000;
    for (const [language, shown, raised] of [
      ["python", "kept = 1\ndisplay(BUNDLE, raw=True)", "raise TypeError('z' * LONG)"],
      ["javascript", "kept = 1; display(BUNDLE, { raw: true })", "throw new TypeError('z'.repeat(LONG))"],
    ] as const) {
      const html = language === "python" ? `'x' * ${long}` : `'x'.repeat(${long})`;
      const bundle = `{'text/html': ${html}, 'text/plain': 'short'}`;
      const { results, error, text } = await other.run(shown.replace("BUNDLE", bundle), { language });
      assert.deepEqual(
        [error, results],
        [undefined, [{ type: "result", text: "short", extra: {}, is_main_result: false }]],
      );
      assert.match(text("stderr"), /^\[text\/html left out: 50000\d\d bytes .*\]\n$/);
      const thrown = (await other.run(raised.replace("LONG", String(long)), { language })).error;
      assert.equal(thrown?.["name"], "TypeError");
      for (const part of ["value", "traceback"])
        assert.match(String(thrown[part]), /z\n\[truncated: \d+ more characters\]$/, part);
      assert.equal((await other.run("kept", { language })).results[0]?.["text"], "1", language);
    }
    const [repr] = (await other.run(`'y' * ${long}`)).results;
    assert.match(String(repr?.["text"]), /^'yyy[^]*y\n\[truncated: \d+ more characters\]$/);
  });

  it("an unreadable result is left out with a note", async () => {
    const { results, text, error } = await sandbox.run(
      "deep = 1\nfor _ in range(900): deep = [deep]\ndisplay({'x/y': deep}, raw=True)\n'next'",
    );
    assert.deepEqual([error, results.map((result) => result["text"])], [undefined, ["next"]]);
    assert.match(text("stderr"), /^\[display_data left out: .* nested too deeply\]\n$/);
  });

  it("code that cannot even be compiled is an error too", async () => {
    assert.equal((await sandbox.run("def f(:")).error?.["name"], "SyntaxError");
    assert.ok((await sandbox.run("a\0b")).error);
    assert.ok((await sandbox.run("'\ud800'")).status === 200);
    assert.equal((await sandbox.run("print('next')")).text("stdout"), "next\n");
  });

  it("displayed values and the MIME types that have no field of their own", async () => {
    const { results } = await sandbox.run(
      "from IPython.display import display\ndisplay({'text/html': '<b>', 'x/y': 1.50}, raw=True)\n'it is'",
    );
    assert.deepEqual(results, [
      { type: "result", html: "<b>", extra: { "x/y": 1.5 }, is_main_result: false },
      { type: "result", text: "it is", extra: {}, is_main_result: true },
    ]);
  });

  it("input() is refused", async () => {
    assert.equal((await sandbox.run("input('name?')")).error?.["name"], "StdinNotImplementedError");
  });

  it("nothing to run gives a count and an end", async () => {
    const { lines } = await sandbox.run("");
    assert.deepEqual(
      lines.map(({ type }) => type),
      ["number_of_executions", "end_of_execution"],
    );
  });
});

describe("output", () => {
  it("stdout and stderr arrive while the code runs, headers before anything, keepalives in silence", async (context) => {
    const signals = await mkdtemp(join(tmpdir(), "coppice-signals-"));
    context.after(() => rm(signals, { recursive: true }));
    const give = (name: string) => writeFile(join(signals, name), "");
    const code = `import os, sys, time
def wait_for(name):
    while not os.path.exists(os.path.join(${JSON.stringify(signals)}, name)): time.sleep(0.02)
wait_for('silence')
print('out', flush=True)
print('err', file=sys.stderr, flush=True)
wait_for('output')`;
    const response = await post("/execute", JSON.stringify({ code }));
    assert.equal(response.headers.get("content-type"), null);
    let text = "";
    let isLive = false;
    assert.ok(response.body);
    for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
      text += chunk;
      if (text.split('{"type": "keepalive"}\n').length > 2) await give("silence");
      if (isLive || !text.includes('"out') || !text.includes('"err')) continue;
      isLive = !text.includes("end_of_execution");
      await give("output");
    }
    assert.ok(isLive, text);
    const [, timestamp] = /"timestamp": "([^"]*)"/.exec(text) ?? [];
    assert.ok(
      timestamp && Math.abs(Date.parse(timestamp) - Date.now()) < 60_000 && timestamp.endsWith("+00:00"),
    );
  });

  it("output of child processes is complete and whole, however it is cut on the way", async () => {
    const child = "import sys; sys.stdout.buffer.write('é😀'.encode() * 30000)";
    const ran = await sandbox.run(
      `import subprocess, sys\nsubprocess.run([sys.executable, '-c', ${JSON.stringify(child)}])\nprint('after')`,
    );
    const text = ran.text("stdout");
    // What a child wrote and what the cell printed have no order between them.
    assert.equal(text.replace("after\n", "").replaceAll("é😀", ""), "");
    assert.equal(text.length, 30_000 * 3 + 6);
    assert.equal((await sandbox.run("'alive'")).results[0]?.["text"], "alive");
  });

  it("output of child processes arrives also on systems where ipykernel does not capture it", async () => {
    const platform = "import sys, sysconfig; sysconfig.get_config_vars(); sys.platform = 'freebsd14'";
    const other = await own.create({ PYTHONPATH: "." });
    await other.live.runtime.files.write(
      "/home/user/sitecustomize.py",
      (async function* () {
        yield Buffer.from(platform);
      })(),
    );
    const ran = await other.run(
      "import subprocess, sys\n_ = subprocess.run(['sh', '-c', 'echo out; echo err >&2'])\nsys.platform",
    );
    assert.deepEqual(
      [ran.text("stdout"), ran.text("stderr"), ran.results[0]?.["text"]],
      ["out\n", "err\n", "freebsd14"],
    );
    await own.server.sandboxes.kill(other.live.record.id);
  });

  it("a cell that breaks its stdout affects no other cell's output or end", async () => {
    const cells: readonly (readonly [code: string, stdout: string, error: string | undefined])[] = [
      [
        "import io, subprocess, sys\nown = sys.stdout\nsys.stdout = open('log', 'w')\nprint('there')\nsys.stdout.close()",
        "",
        undefined,
      ],
      ["print('seen')", "seen\n", undefined],
      ["sys.stdout = None\n1/0", "", "ZeroDivisionError"],
      ["sys.stdout.close()\nprint('still')", "still\n", undefined],
      ["sys.stdout = io.StringIO()", "", undefined],
      ["print('kept')\n_ = subprocess.run(['echo', 'of a child'])", "of a child\n", undefined],
      ["text = sys.stdout.getvalue()\nsys.stdout = own\nprint(text, end='')", "kept\n", undefined],
      ["sys.stdout = io.StringIO()\nsys.stdout = sys.__stdout__\nprint('back')", "back\n", undefined],
      ["_ = subprocess.run(['echo', 'handed over'], stdout=sys.stdout)", "handed over\n", undefined],
    ];
    for (const [code, stdout, error] of cells) {
      const ran = await sandbox.run(code);
      assert.deepEqual([ran.text("stdout"), ran.error?.["name"]], [stdout, error], code);
    }
  });

  it("what a child writes as the last act of a busy cell arrives", async () => {
    // The thread that reads the pipe has read it and waits for the interpreter's lock, which the cell holds.
    const cell = `import io, os, subprocess, sys, time
own, sys.stdout = sys.stdout, io.StringIO()
interval = sys.getswitchinterval()
sys.setswitchinterval(10)
child = subprocess.Popen("sleep 0.1; echo of a child", shell=True)
end = time.monotonic() + 0.3
while time.monotonic() < end:
    pass`;
    for (let round = 0; round < 3; round++) {
      assert.equal((await sandbox.run(cell)).text("stdout"), "of a child\n");
      await sandbox.run("child.wait()\nsys.setswitchinterval(interval)\nsys.stdout = own");
    }
  });

  it("a large output is split into several messages", async () => {
    const { lines } = await sandbox.run("print('x' * 3_000_000)\nprint('y' * 3_000_000, end='')");
    const pieces = lines.filter(({ type }) => type === "stdout").map(({ text }) => String(text));
    assert.equal(pieces.join(""), `${"x".repeat(3_000_000)}\n${"y".repeat(3_000_000)}`);
    const longest = Math.max(...pieces.map(({ length }) => length));
    assert.ok(longest <= 512 * 1024, `${longest} characters`);
  });

  it("a process that a cell forks ends with the cell, and what it printed is there", async () => {
    const ran = await sandbox.run(
      "import os\nx = 'mine'\npid = os.fork()\nif pid == 0:\n    x = 'of the copy'\n    print('copy')\n" +
        "else:\n    print('status', os.waitpid(pid, 0)[1])",
    );
    assert.deepEqual(ran.text("stdout").trim().split("\n").toSorted(), ["copy", "status 0"]);
    assert.equal((await sandbox.run("x")).results[0]?.["text"], "mine");
  });

  it("a lone surrogate costs one character and nothing around it, wherever it is", async () => {
    assert.equal(
      (await sandbox.run("print('a\\ud83db', '\\ud83d\\ude00')")).text("stdout"),
      "a\ufffdb \u{1f600}\n",
    );
    const raised = await sandbox.run("raise ValueError('a\\ud83db')");
    assert.deepEqual([raised.error?.["name"], raised.error?.["value"]], ["ValueError", "a\ufffdb"]);
    assert.match(String(raised.error?.["traceback"]), /----> 1 raise ValueError/);
    const shown = await sandbox.run(
      "from IPython.display import HTML, display\ndisplay(HTML('a\\ud83db'))\n{'a\\ud83db': '\\udcff'}",
    );
    assert.deepEqual(
      [shown.error, shown.results[0]?.["html"], shown.results[1]?.["json"]],
      [undefined, "a\ufffdb", { "a\ufffdb": "\ufffd" }],
    );
  });

  it("a number that JSON lacks is null, without a warning", async () => {
    const { results, text } = await sandbox.run(
      "display({'x/y': [1.0, float('nan'), {'a': (float('inf'), -0.0)}]}, raw=True)\n[1.0, float('nan'), 10**30]",
    );
    assert.deepEqual(
      [results[0]?.["extra"], results[1]?.["json"], text("stderr")],
      [{ "x/y": [1, null, { a: [null, -0] }] }, [1, null, 1e30], ""],
    );
  });

  it("long texts of any content arrive unchanged", async () => {
    const kinds = [
      "a line\n",
      '"quoted" and C:\\new\\u0041 and \\" both\t|\r\n',
      "\u001b[31mred\u001b[0m",
      "\0\u0007\u001f\u007f",
      "dépôt 漢字 😀 \u2028",
    ];
    for (const kind of kinds) {
      const text = kind.repeat(900);
      const ran = await sandbox.run(`print(${JSON.stringify(kind)} * 900, end="")`);
      assert.ok(ran.text("stdout") === text, `${JSON.stringify(kind)} became ${ran.body.slice(0, 300)}`);
    }
  });

  it("a lot of output is complete, though its memory is reused and the reader pauses", async () => {
    const code = "for i in range(40): print(str(i % 10) * 400_000)";
    const response = await post("/execute", JSON.stringify({ code }));
    const hash = createHash("sha256");
    let rest = "";
    let unpausedBytes = 0;
    for await (const chunk of response.body ?? []) {
      rest += Buffer.from(chunk as Uint8Array).toString("latin1");
      const end = rest.lastIndexOf("\n") + 1;
      for (const line of rest.slice(0, end).split("\n")) {
        if (line.startsWith('{"type": "stdout"')) hash.update((JSON.parse(line) as { text: string }).text);
      }
      rest = rest.slice(end);
      unpausedBytes += chunk.length;
      if (unpausedBytes < 1_000_000) continue;
      unpausedBytes = 0;
      await delay(20);
    }
    const expected = createHash("sha256");
    for (let index = 0; index < 40; index++) expected.update(`${String(index % 10).repeat(400_000)}\n`);
    assert.equal(hash.digest("hex"), expected.digest("hex"));
  });

  it("thousands of displayed values all arrive at a reader that starts late", async () => {
    const code =
      "from IPython.display import display\nfor i in range(3000): display({'text/plain': str(i)}, raw=True)";
    const response = await post("/execute", JSON.stringify({ code }));
    await delay(500);
    const lines = (await response.text())
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line) as Record<string, unknown>);
    const shown = lines.filter(({ type }) => type === "result").map(({ text }) => Number(text));
    assert.deepEqual(
      shown,
      Array.from({ length: 3000 }, (_, index) => index),
    );
    assert.deepEqual(lines.at(-1), { type: "end_of_execution" });
  });

  it("past its limit, output ends in a note; the code goes on", async () => {
    const ran = await sandbox.run("for i in range(30): print('x' * 1_000_000)\nran = 'whole'");
    assert.ok(ran.text("stdout").length <= 20_000_000);
    assert.match(ran.text("stderr"), /^\n\[output truncated: .* 20000000 bytes\]\n$/);
    assert.equal((await sandbox.run("ran")).results[0]?.["text"], "whole");
  });

  it("a reader slower than the code slows the code, not the server's memory", async () => {
    await using large = await startCodeServer();
    const other = await large.create();
    await other.run("1");
    const baseBytes = process.memoryUsage().rss;
    const body = JSON.stringify({ code: "print('x' * 150_000_000)" });
    const response = await other.fetch("/execute", { method: "POST", body });
    let peakBytes = 0;
    let sizeBytes = 0;
    let pausedBytes = 0;
    assert.ok(response.body);
    for await (const chunk of response.body) {
      sizeBytes += chunk.length;
      pausedBytes += chunk.length;
      if (pausedBytes > 10_000_000) {
        pausedBytes = 0;
        await delay(50);
      }
      peakBytes = Math.max(peakBytes, process.memoryUsage().rss);
    }
    assert.ok(sizeBytes > 150_000_000);
    const grownMiB = (peakBytes - baseBytes) / 1024 / 1024;
    assert.ok(grownMiB < 140, `memory grew by ${grownMiB.toFixed(0)} MiB, this test's own client included`);
  });
});

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
    // Which of them comes first is not said.
    const count = "a = globals().get('a', 0) + 1";
    const ran = await Promise.all([fresh.run(count), fresh.run(count), fresh.run(count)]);
    assert.ok(ran.every(({ error }) => error === undefined));
    assert.equal((await fresh.run("a")).results[0]?.["text"], "3");
    assert.equal(((await (await fresh.fetch("/contexts")).json()) as unknown[]).length, 2);
    await own.server.sandboxes.kill(fresh.live.record.id);
  });
});

describe("bad requests", () => {
  it("each has the answer of the contract, and the next request is served", async () => {
    const cases: readonly (readonly [
      method: string,
      path: string,
      body: string | undefined,
      status: number,
      answer: RegExp,
    ])[] = [
      [
        "POST",
        "/execute",
        '{"code": "1", "context_id": "a", "language": "python"}',
        400,
        /^Only one of context_id or language can be provided$/,
      ],
      ["POST", "/execute", '{"code": "1", "context_id": "nope"}', 404, /^Context nope not found$/],
      [
        "POST",
        "/execute",
        '{"code": "1", "language": "cobol"}',
        500,
        /^Failed to create context: \{"message": "The 'cobol' kernel is not available\..*"short_message": "cobol not found"\}$/,
      ],
      ["POST", "/execute", "{", 422, /"detail":\[\{"type":"json_invalid"/],
      ["POST", "/execute", "", 422, /"detail"/],
      ["POST", "/execute", "[]", 422, /"detail"/],
      [
        "POST",
        "/execute",
        "{}",
        422,
        /"detail":\[\{"type":"missing","loc":\["body","code"\],"msg":"Field required"/,
      ],
      ["POST", "/execute", '{"code": 1}', 422, /"loc":\["body","code"\]/],
      ["POST", "/execute", '{"code": "1", "env_vars": {"A": 1}}', 422, /"loc":\["body","env_vars","A"\]/],
      ["POST", "/execute", '{"code": "1", "env_vars": {"A=B": "1"}}', 422, /"detail"/],
      ["POST", "/execute", '{"code": "1", "env_vars": {"A": "\\u0000"}}', 422, /"detail"/],
      ["POST", "/execute", '{"code": "1", "env_vars": {"A": "\\ud800"}}', 422, /"detail"/],
      ["POST", "/execute", JSON.stringify({ code: "x".repeat(200_000) }), 413, /100000/],
      ["POST", "/contexts", '{"language": "cobol"}', 500, /^Failed to create context: \{"message"/],
      [
        "POST",
        "/contexts",
        '{"cwd": "/does/not/exist"}',
        400,
        /^Failed to create context: cwd '\/does\/not\/exist' does not exist$/,
      ],
      ["POST", "/contexts", '{"cwd": "a\\u0000b"}', 400, /^Failed to create context: /],
      ["POST", "/contexts", '{"cwd": 1}', 422, /"detail"/],
      ["POST", "/contexts/nope/restart", "", 404, /^Context nope not found$/],
      ["DELETE", "/contexts/nope", undefined, 404, /^Context nope not found$/],
    ];
    for (const [method, path, body, status, answer] of cases) {
      const response = await sandbox.fetch(path, { method, ...(body !== undefined && { body }) });
      const text = await response.text();
      const name = `${method} ${path} ${body?.slice(0, 60)}: ${text.slice(0, 200)}`;
      assert.equal(response.status, status, name);
      assert.match(text, answer, name);
    }
    const health = await sandbox.fetch("/health");
    assert.deepEqual([health.status, await health.text()], [200, '"OK"']);
    assert.equal((await sandbox.run("1")).status, 200);
  });

  it("a Python without ipykernel, or none at all, is a clear refusal", async () => {
    for (const [python, reason] of [
      ["/does/not/exist", /exit code 127/],
      ["/bin/false", /^Failed to create context: the kernel ended while it started \(exit code 1\)/],
    ] as const) {
      await using broken = await startCodeServer({ python });
      const other = await broken.create();
      const { status, body } = await other.run("1");
      assert.equal(status, 500);
      assert.match(body, reason);
    }
  });

  it("a kernel that does not start in time is ended", async () => {
    await using slow = await startCodeServer({ startTimeout: "50ms" });
    const { status, body } = await (await slow.create()).run("1");
    assert.deepEqual(
      [status, body],
      [500, "Failed to create context: the kernel was not ready within 50 ms"],
    );
  });
});

describe("kernels and their sandbox", () => {
  it("kernels end with their sandbox, and so do their executions", async () => {
    const fresh = await own.create();
    const { results } = await fresh.run("import os\nos.getpid()");
    const pid = Number(results[0]?.["text"]);
    assert.doesNotThrow(() => process.kill(pid, 0));
    const kernels = await metric("kernels");
    assert.ok(kernels >= 1);
    const running = fresh.fetch("/execute", {
      method: "POST",
      body: '{"code": "import time; time.sleep(100)"}',
    });
    const broken = running
      .then((response) => response.text())
      .then(
        () => "ended",
        () => "broken",
      );
    await delay(200);
    await own.server.sandboxes.kill(fresh.live.record.id);
    assert.equal(await broken, "broken");
    // A process that has ended can still be seen until its parent has collected it.
    for (let waits = 0; isThere(pid); waits++) {
      assert.ok(waits < 50, "the kernel's process ends");
      await delay(20);
    }
    for (let waits = 0; (await metric("kernels")) !== kernels - 1; waits++) {
      assert.ok(waits < 50, "the gauge goes down");
      await delay(50);
    }
  });

  it("kernels run as the account that the configuration names, in the folder of the sandbox's user", async () => {
    await using own = await startCodeServer({ user: "root", zygote: { enabled: true, imports: [] } });
    const root = await own.create();
    const look =
      "import os\n[os.environ['USER'], os.path.basename(os.environ['HOME']), os.path.basename(os.getcwd())]";
    assert.deepEqual((await root.run(look)).results[0]?.["json"], ["root", "root", "user"]);
    await using none = await startCodeServer({ user: "no-such-user" });
    const { status, body } = await (await none.create()).run("1");
    assert.deepEqual([status, /no account 'no-such-user'/.test(body)], [500, true], body);
  });

  it("an eager kernel runs before its first use, a lazy one does not", async () => {
    await using mixed = await startCodeServer({ templates: { "code-interpreter-v1": { kernel: "eager" } } });
    const kernels = (): Promise<number> => metric("kernels", mixed);
    await mixed.create();
    const eager = await mixed.create({ GIVEN: "1" }, "code-interpreter-v1");
    for (let waits = 0; (await kernels()) === 0; waits++) {
      assert.ok(waits < 300, "a kernel comes up by itself");
      await delay(50);
    }
    assert.equal((await eager.run("import os; os.environ['GIVEN']")).results[0]?.["text"], "1");
    assert.equal(await kernels(), 1, "one kernel, that of the eager template");
  });

  it("starts, failed starts, and replacements are counted", async () => {
    await using counted = await startCodeServer();
    const fresh = await counted.create();
    await fresh.run("import os; os._exit(1)");
    const { id } = (await (await fresh.fetch("/contexts", { method: "POST", body: "{}" })).json()) as {
      readonly id: string;
    };
    await fresh.fetch(`/contexts/${id}/restart`, { method: "POST" });
    await fresh.run("1");
    assert.equal(await metric('restarts_total{cause="asked"}', counted), 1);
    assert.equal(await metric('restarts_total{cause="died"}', counted), 1);
    assert.equal(await metric('kernel_start_seconds_count{how="cold"}', counted), 4);
    assert.equal(await metric("execution_seconds_count", counted), 2);
    assert.equal(await metric("kernels", counted), 2);
    assert.equal(await metric("kernel_start_failures_total", counted), 0);
    await using broken = await startCodeServer({ python: "/bin/false" });
    await (await broken.create()).run("1");
    assert.equal(await metric("kernel_start_failures_total", broken), 1);
  });

  it("every execution is counted once, by how it ended", async () => {
    const count = (status: string): Promise<number> => metric(`executions_total{status="${status}"}`);
    const before = await Promise.all(["ok", "error", "interrupted", "died"].map(count));
    await sandbox.run("1");
    await sandbox.run("1/0");
    await leave("import time; time.sleep(10)", 100);
    await sandbox.run("import os; os._exit(0)");
    const after = await Promise.all(["ok", "error", "interrupted", "died"].map(count));
    assert.deepEqual(
      after.map((value, index) => value - (before[index] || 0)),
      [1, 1, 1, 1],
    );
  });
});
