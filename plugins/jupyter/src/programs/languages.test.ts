import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import {
  startCodeServer,
  type CodeSandbox,
  type CodeServer,
  type Execution,
} from "../testing/code-server.js";

let own: CodeServer;
let sandbox: CodeSandbox;

before(async () => {
  own = await startCodeServer({ interruptGrace: "15s" });
  sandbox = await own.create({ GLOBAL: "g'lobal\"" });
});

after(() => own[Symbol.asyncDispose]());

type Run = (code: string, more?: object) => Promise<Execution>;

const running =
  (language: string): Run =>
  (code, more = {}) =>
    sandbox.run(code, { language, ...more });

/** Starts code and goes away in the middle of it. */
async function leave(language: string, code: string, afterMs: number): Promise<void> {
  const client = new AbortController();
  const response = await sandbox.fetch("/execute", {
    method: "POST",
    body: JSON.stringify({ code, language }),
    signal: client.signal,
  });
  const reading = response.text().catch(() => undefined);
  await delay(afterMs);
  client.abort();
  await reading;
}

/** The `text` of the only result of some code. */
async function valueOf(run: Run, code: string, more?: object): Promise<unknown> {
  const ran = await run(code, more);
  assert.equal(ran.error, undefined, `${code}: ${JSON.stringify(ran.error)}`);
  assert.equal(ran.results.length, 1, `${code}: ${ran.body}`);
  return ran.results[0]?.["text"];
}

/** Runs code that prints `out` and `err`, then goes on until there is a file, which is made when both have arrived. */
async function expectLive(language: string, code: string, makeFile: () => Promise<unknown>): Promise<void> {
  const response = await sandbox.fetch("/execute", {
    method: "POST",
    body: JSON.stringify({ code, language }),
  });
  let text = "";
  let isMade = false;
  assert.ok(response.body);
  for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
    text += piece;
    if (isMade || !text.includes('"out') || !text.includes('"err')) continue;
    assert.ok(!text.includes("end_of_execution"), "its output came with its end");
    isMade = true;
    await makeFile();
  }
  assert.ok(isMade && text.includes("end_of_execution"), text);
}

describe("JavaScript", () => {
  const run = running("javascript");

  it("state stays, also of what is declared again; the last value is the result", async () => {
    await run("const base = 40; let step = 1; class Box {}; function twice(n) { return 2 * n }");
    assert.equal(await valueOf(run, "const base = 20; base + twice(step)"), "22");
    assert.equal(await valueOf(run, "new Box() instanceof Box && 'boxed'"), "boxed");
    assert.deepEqual((await run("const silent = 1")).results, []);
    assert.deepEqual((await run("undefined")).results, []);
  });

  it("await works on the top level, and a cell that ends in a promise ends with it", async () => {
    assert.equal(await valueOf(run, "const late = await Promise.resolve(7); late + 1"), "8");
    assert.equal(await valueOf(run, "(async () => { await null; return 'later' })()"), "later");
    const rejected = await run("(async () => { await null; throw new RangeError('too late') })()");
    assert.equal(rejected.error?.["name"], "RangeError");
  });

  it("values are text, and JSON, HTML or a picture where they can be", async () => {
    const { results } = await run("({ a: [1.5, 'x'], b: { c: null } })");
    assert.deepEqual(results[0]?.["json"], { a: [1.5, "x"], b: { c: null } });
    assert.equal(results[0]?.["text"], "{ a: [ 1.5, 'x' ], b: { c: null } }");
    const shown = await run(
      "display({ _toHtml: () => '<b>h</b>' }); console.log('between');\n" +
        "display({ 'text/markdown': '# m', 'x/y': 1 }, { raw: true });\n" +
        "await display({ [Symbol.for('Jupyter.display')]: async () => ({ 'image/svg+xml': '<svg/>' }) });\n" +
        "Buffer.from('89504e470d0a1a0a00', 'hex')",
    );
    assert.deepEqual(
      shown.lines.map((line) => line["html"] ?? line["markdown"] ?? line["svg"] ?? line["png"] ?? line.type),
      ["number_of_executions", "<b>h</b>", "stdout", "# m", "<svg/>", "iVBORw0KGgoA", "end_of_execution"],
    );
    assert.deepEqual(shown.results.at(1)?.["extra"], { "x/y": 1 });
    assert.equal((await run("10n")).results[0]?.["text"], "10n");
    const circular = await run("const own = {}; own.self = own; own");
    assert.equal(circular.results[0]?.["json"], undefined);
  });

  it("console.log and console.error arrive while the cell runs, even in a busy loop", async () => {
    const busy = "while (!require('node:fs').existsSync(process.env.HOME + '/go'));";
    await expectLive("javascript", `console.log('out'); console.error('err'); ${busy}`, () =>
      running("bash")('touch "$HOME/go"'),
    );
    const ran = await run("process.stdout.write('é😀'); console.error('e'); console.table([{ a: 1 }])");
    assert.match(ran.text("stdout"), /^é😀┌/);
    assert.equal(ran.text("stderr"), "e\n");
  });

  it("an error has its name, its message, and a stack of the user's lines only", async () => {
    const { error } = await run("function fail() {\n  null.x\n}\nfail()");
    assert.equal(error?.["name"], "TypeError");
    assert.match(String(error["value"]), /Cannot read properties of null/);
    assert.match(String(error["traceback"]), /at fail \(cell-\d+\.js:2:8\)\n +at cell-\d+\.js:4:1$/);
    const thrown = await run("throw 'text'");
    assert.deepEqual([thrown.error?.["name"], thrown.error?.["value"]], ["Uncaught", "'text'"]);
    const uncompiled = await run("let fine;\nlet x = ;");
    assert.equal(uncompiled.error?.["name"], "SyntaxError");
    assert.match(
      String(uncompiled.error["traceback"]),
      /^cell-\d+\.js:2\nlet x = ;\n {8}\^\n\nSyntaxError: /,
    );
    const cause = await run("throw new Error('outer', { cause: new Error('inner') })");
    assert.match(String(cause.error?.["traceback"]), /outer[^]*\[cause\]: Error: inner/);
  });

  it("a later failure is printed on stderr and ends nothing", async () => {
    const ran = await run(
      "setTimeout(() => { throw new Error('timer') }, 1); Promise.reject(new Error('promise'));\n" +
        "await new Promise((done) => setTimeout(done, 50)); 'alive'",
    );
    assert.equal(ran.results[0]?.["text"], "alive");
    assert.match(ran.text("stderr"), /Uncaught \(in promise\) Error: promise/);
    assert.match(ran.text("stderr"), /Uncaught Error: timer/);
  });

  it("modules are imported in both ways, packages and files of the sandbox too", async () => {
    await sandbox.live.runtime.files.write(
      `${(await sandbox.live.runtime.user()).home}/own.mjs`,
      (async function* () {
        yield Buffer.from("export const answer = 42; export default 'default'");
      })(),
    );
    const imported = await run(
      "import own, { answer as found } from './own.mjs';\nimport * as path from 'node:path';\nimport 'node:os';\n" +
        "own + found + path.basename('/a/b')",
    );
    assert.equal(imported.results[0]?.["text"], "default42b");
    assert.equal(imported.text("stderr"), "");
    assert.equal(
      await valueOf(run, "require('node:path').basename('/a/c') + (await import('./own.mjs')).answer"),
      "c42",
    );
    assert.equal((await run("import missing from 'no-such-package'")).error?.["name"], "Error");
    assert.equal(await valueOf(run, "const text = `import x from 'y'`; text.length"), "17");
    assert.equal(await valueOf(run, "export const exported = 3; exported"), "3");
  });

  it("variables of one execution are gone after it, the sandbox's stay", async () => {
    const more = { env_vars: { QUOTED: "a'b\"c\n${x}é", GLOBAL: "other" } };
    assert.deepEqual(
      (await run("[process.env.QUOTED, process.env.GLOBAL]", more)).results[0]?.["json"],
      Object.values(more.env_vars),
    );
    assert.equal(await valueOf(run, "[process.env.QUOTED, process.env.GLOBAL].join()"), "`,g'lobal\"`");
  });

  it("an interrupt ends loops, awaits and programs, and keeps the state", async () => {
    await run("globalThis.kept = 'kept'");
    for (const code of [
      "while (true);",
      "try { while (true); } finally { while (true); }",
      "await 1; while (true);",
      "await new Promise((done) => { globalThis.done = done })",
      "while (true) await require('node:timers/promises').setTimeout(5)",
      "setInterval(() => console.log('still here'), 5); await new Promise((done) => { globalThis.done = done })",
      "setTimeout(() => { while (true); }, 20); await new Promise((done) => { globalThis.done = done })",
      "require('node:child_process').execSync('sleep 100')",
      "while (true) console.log('x'.repeat(1000))",
    ]) {
      await leave("javascript", code, 150);
      const startedMs = performance.now();
      const { results, text, error } = await run("kept");
      assert.equal(results[0]?.["text"], "kept", `${code}: ${JSON.stringify(error)}`);
      assert.ok(performance.now() - startedMs < 30_000, `${code}: ${performance.now() - startedMs} ms`);
      await delay(20);
      assert.doesNotMatch((await run("0")).text("stdout") + text("stderr"), /still here/, code);
    }
  });

  it("leaving at any moment never makes the next execution hang or lose its state", async () => {
    for (let round = 0; round < 25; round++) {
      await leave(
        "javascript",
        round % 2 ? "while (true);" : "await new Promise((done) => { globalThis.done = done })",
        (round * 7) % 30,
      );
      assert.equal(await valueOf(run, "kept"), "kept", `round ${round}`);
    }
  });

  it("process.exit ends the kernel, not the context, and what was printed arrives", async () => {
    const ended = await run("console.log('last words'); process.exit(3); console.log('never')");
    assert.equal(ended.text("stdout"), "last words\n", ended.body);
    assert.deepEqual([ended.error?.["name"], ended.error?.["value"]], ["ExitCode", "3"]);
    assert.equal(await valueOf(run, "typeof kept"), "undefined");
    assert.equal((await run("process.exit()")).error, undefined);
    assert.equal((await run("process.abort()")).error?.["name"], "ContextRestarting");
    assert.equal(await valueOf(run, "1 + 1"), "2");
  });

  it("a lot of output is whole, and cells leave nothing behind", async () => {
    const ran = await run("for (let line = 0; line < 100_000; line++) console.log(line)");
    assert.equal(ran.text("stdout").length, 588_890);
    // The result has a toJSON: the JSON of the whole array would be 19 MB in each execution.
    const cell =
      "const big = new Array(1e6).fill(Math.random()); console.log(big.length); ({ big, toJSON: () => big.length })";
    // Collects garbage first: V8 may leave any amount of it.
    const collected = `(() => {
      const v8 = require("node:v8");
      v8.setFlagsFromString("--expose-gc");
      require("node:vm").runInNewContext("gc")();
      return v8.getHeapStatistics().used_heap_size;
    })()`;
    const heap = async (): Promise<number> => Number(await valueOf(run, collected));
    await run(cell);
    const before = await heap();
    for (let round = 0; round < 10; round++) await run(cell);
    const grownMiB = ((await heap()) - before) / 2 ** 20;
    assert.ok(grownMiB < 20, `10 cells of 8 MiB each left ${grownMiB.toFixed()} MiB`);
  });

  it("code finds itself at home, with the names that Node.js gives", async () => {
    assert.deepEqual(
      (
        await run(
          "[typeof require, typeof fetch, typeof structuredClone, process.cwd() === process.env.HOME]",
        )
      ).results[0]?.["json"],
      ["function", "function", "function", true],
    );
    assert.deepEqual(
      (
        await run(
          "Object.keys(globalThis).filter((name) => name.includes('import') || name.includes('cell'))",
        )
      ).results[0]?.["json"],
      [],
    );
  });
});

describe("TypeScript", () => {
  const run = running("ts");

  it("types are stripped, line numbers stay the same", async () => {
    assert.equal(
      await valueOf(run, "interface Point { x: number }\nconst point: Point = { x: 2 }; point.x as number"),
      "2",
    );
    assert.equal(await valueOf(run, "enum Color { Red, Green }\nColor.Green"), "1");
    const { error } = await run(
      "type A = string;\nfunction f(a: A): never {\n  throw new Error(a)\n}\nf('x')",
    );
    assert.match(String(error?.["traceback"]), /at f \(cell-\d+\.js:3:9\)/);
    assert.equal(
      await valueOf(
        run,
        "import { basename } from 'node:path';\nconst path: string = '/a/b'; basename(path)",
      ),
      "b",
    );
  });
});

describe("bash", () => {
  const run = running("bash");

  it("variables, functions and the directory stay", async () => {
    await run("greeting='hello there'; say() { echo \"$greeting $1\"; }; cd /");
    const { text } = await run('say you\npwd\necho "é😀" | tr -d x');
    assert.equal(
      text("stdout"),
      "hello there you\n/\né😀\n".replace("/\n", text("stdout").split("\n")[1] + "\n"),
    );
  });

  it("stdout and stderr are apart and live", async () => {
    const waiting = 'until [ -e "$HOME/go-on" ]; do sleep 0.05; done';
    await expectLive("bash", `echo out; echo err >&2; ${waiting}`, () =>
      running("javascript")("require('node:fs').writeFileSync(process.env.HOME + '/go-on', '')"),
    );
    const ran = await run("echo out; echo err >&2");
    assert.deepEqual([ran.text("stdout"), ran.text("stderr")], ["out\n", "err\n"]);
  });

  it("a cell that ends with another status than 0 is an error", async () => {
    for (const [code, status] of [
      ["false", "1"],
      ["(exit 42)", "42"],
      ["no-such-command", "127"],
      ["if then", "2"],
      ["kill -TERM $BASHPID & wait $!", "143"],
    ] as const) {
      const { error } = await run(code);
      assert.deepEqual([error?.["name"], error?.["value"]], ["ExitCode", status], code);
    }
    assert.equal((await run("false; true")).error, undefined);
    assert.match((await run("no-such-command")).text("stderr"), /no-such-command: command not found/);
  });

  it("the shell prints nothing about a program that a signal ends", async () => {
    const ran = await run("yes | head -1; sh -c 'kill -9 $$'; echo $?");
    assert.deepEqual([ran.text("stdout"), ran.text("stderr"), ran.error], ["y\n137\n", "", undefined]);
  });

  it("code with any characters runs, and does not break the kernel's protocol", async () => {
    const ran = await run("cat <<'END'\n'quotes\" $HOME `x`\nEND\necho done # ' \"");
    assert.equal(ran.text("stdout"), "'quotes\" $HOME `x`\ndone\n");
    assert.equal((await run('read -r line; echo "[$line]"; cat')).text("stdout"), "[]\n");
    assert.equal((await run(`echo ${"x".repeat(200_000)} | wc -c`)).text("stdout").trim(), "200001");
    assert.equal((await run("")).error, undefined);
  });

  it("variables of one execution are gone after it, the sandbox's stay", async () => {
    const more = { env_vars: { QUOTED: "a'b\"c\n$(echo x)é", GLOBAL: "other" } };
    const ran = await run("printenv QUOTED GLOBAL", more);
    assert.equal(ran.text("stdout"), `${more.env_vars.QUOTED}\nother\n`);
    assert.equal(ran.error, undefined);
    const { text } = await run(
      'echo "${QUOTED-none} $GLOBAL"; compgen -v | grep -i coppice | grep -v COPPICE_SANDBOX',
    );
    assert.equal(text("stdout").split("\n")[0], "none g'lobal\"");
  });

  it("an interrupt ends loops, programs and pipes, and keeps the state", async () => {
    await run("kept=kept");
    for (const code of [
      "while :; do :; done",
      "sleep 100; sleep 100",
      "while true; do sleep 0.01; done",
      "f() { sleep 100; echo no; }; f; echo no",
      "yes | cat > /dev/null",
      "sleep 100 & wait",
      "yes",
    ]) {
      await leave("bash", code, 150);
      const startedMs = performance.now();
      assert.equal((await run("echo $kept")).text("stdout"), "kept\n", code);
      assert.ok(performance.now() - startedMs < 30_000, `${code}: ${performance.now() - startedMs} ms`);
    }
  });

  it("leaving at any moment never makes the next execution hang or lose its state", async () => {
    for (let round = 0; round < 25; round++) {
      await leave("bash", "while :; do :; done", (round * 7) % 30);
      assert.equal((await run("echo $kept")).text("stdout"), "kept\n", `round ${round}`);
    }
  });

  it("exit ends the shell, not the context; so does its death", async () => {
    const ended = await run("echo last; exit 3");
    assert.equal(ended.text("stdout"), "last\n");
    assert.equal(ended.text("stderr"), "");
    assert.equal(ended.error?.["value"], "3");
    assert.equal((await run('echo "[$kept]"; pwd -P')).text("stdout").split("\n")[0], "[]");
    assert.equal((await run("kill -9 $$")).error?.["value"], "-9");
    assert.equal((await run("echo again")).text("stdout"), "again\n");
  });
});

describe("languages", () => {
  it("each has a default context of its own, made when it is first used, and others where asked", async () => {
    const fresh = await own.create();
    const names = async (): Promise<unknown[]> =>
      ((await (await fresh.fetch("/contexts")).json()) as { language: string }[]).map(
        ({ language }) => language,
      );
    assert.deepEqual(await names(), ["python", "javascript"]);
    await fresh.run("x = 1", { language: " Bash\n" });
    assert.deepEqual(await names(), ["python", "javascript", "bash"]);
    const made = await fresh.fetch("/contexts", { method: "POST", body: '{"language": "js", "cwd": "/"}' });
    const { id, ...view } = (await made.json()) as { id: string };
    assert.deepEqual(view, { language: "javascript", cwd: "/" });
    await fresh.run("globalThis.here = true", { context_id: id });
    const elsewhere = await fresh.run("typeof here", { language: "js" });
    assert.equal(elsewhere.results[0]?.["text"], "undefined");
    await own.server.sandboxes.kill(fresh.live.record.id);
  });

  it("a context's directory is where its code is, in each language", async () => {
    for (const [language, code] of [
      ["python", "import os; print(os.path.basename(os.getcwd()))"],
      ["javascript", "console.log(require('node:path').basename(process.cwd()))"],
      ["bash", 'basename "$PWD"'],
    ] as const) {
      await sandbox.live.runtime.files
        .makeDir(`${(await sandbox.live.runtime.user()).home}/deep`)
        .catch(() => undefined);
      const made = await sandbox.fetch("/contexts", {
        method: "POST",
        body: JSON.stringify({ language, cwd: "deep" }),
      });
      const { id } = (await made.json()) as { id: string };
      assert.equal((await sandbox.run(code, { context_id: id })).text("stdout"), "deep\n", language);
      await sandbox.fetch(`/contexts/${id}/restart`, { method: "POST" });
      assert.equal(
        (await sandbox.run(code, { context_id: id })).text("stdout"),
        "deep\n",
        `${language} restarted`,
      );
      await sandbox.fetch(`/contexts/${id}`, { method: "DELETE" });
    }
  });

  it("TypeScript is refused where Node.js cannot strip types, JavaScript is not", async () => {
    const folder = await mkdtemp(join(tmpdir(), "coppice-old-node-"));
    try {
      const node = join(folder, "node");
      const hide = "delete require('node:module').stripTypeScriptTypes";
      await writeFile(join(folder, "old.cjs"), hide);
      await writeFile(node, `#!/bin/sh\nexec '${process.execPath}' --require '${folder}/old.cjs' "$@"\n`, {
        mode: 0o755,
      });
      await using old = await startCodeServer({ node });
      const fresh = await old.create();
      assert.equal((await fresh.run("1 + 1", { language: "js" })).results[0]?.["text"], "2");
      const { status, body } = await fresh.run("const one: number = 1", { language: "ts" });
      const reason = /^Failed to create context: .*TypeScript needs Node\.js 22\.13 or newer/;
      assert.deepEqual([status, reason.test(body)], [500, true], body);
    } finally {
      await rm(folder, { recursive: true });
    }
  });

  it("a sandbox without Node.js says so", async () => {
    await using broken = await startCodeServer({ node: "/does/not/exist" });
    const { status, body } = await (await broken.create()).run("1", { language: "js" });
    assert.deepEqual([status, /^Failed to create context: .*127/.test(body)], [500, true], body);
  });
});
