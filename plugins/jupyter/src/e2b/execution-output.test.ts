import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { startCodeServer, type CodeSandbox, type CodeServer } from "../testing/code-server.js";

let own: CodeServer;
let sandbox: CodeSandbox;

before(async () => {
  own = await startCodeServer({ keepalive: "400ms", maxOutput: "20000000B" });
  sandbox = await own.create({ GLOBAL: "g'lobal\"" });
});

after(() => own[Symbol.asyncDispose]());

const post = (path: string, body: string): Promise<Response> => sandbox.fetch(path, { method: "POST", body });

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

  it("what a cell printed and showed is not kept by its kernel", async () => {
    await sandbox.run("print('printed')\nfrom IPython.display import HTML\nHTML('shown')");
    // IPython 9 keeps it here, for %notebook.
    const kept = await sandbox.run("len(getattr(get_ipython().history_manager, 'outputs', ()))");
    assert.equal(kept.results[0]?.["text"], "0");
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

it("output that a client does not take fills http.maxHeldBodies, until it leaves", async () => {
  await using server = await startCodeServer({}, { http: { maxHeldBodies: "24MiB" } });
  const busy = await server.create();
  const code = "from IPython.display import display\ndisplay({'text/plain': 'x' * 20_000_000}, raw=True)";
  assert.equal((await busy.run(code)).error, undefined);
  const leaving = new AbortController();
  const made = await busy.fetch("/contexts", { method: "POST", body: "{}" });
  const { id } = (await made.json()) as { id: string };
  const unread = await busy.fetch("/execute", {
    method: "POST",
    body: JSON.stringify({ code, context_id: id }),
    signal: leaving.signal,
  });
  assert.equal(unread.status, 200);
  const isRefused = (): Promise<boolean> =>
    busy.run(code).then(
      () => false,
      () => true,
    );
  for (let tries = 0; !(await isRefused()); tries++) assert.ok(tries < 50, "it holds nothing");
  leaving.abort();
  for (let tries = 0; await isRefused(); tries++) assert.ok(tries < 50, "it still holds it");
});
