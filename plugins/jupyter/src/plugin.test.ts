import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { createLogger } from "@coppice/core/testing";
import { startCodeServer, type CodeSandbox, type CodeServer } from "./testing/code-server.js";

let own: CodeServer;
let sandbox: CodeSandbox;

before(async () => {
  own = await startCodeServer({ interruptGrace: "2s", maxCode: "100000B" });
  sandbox = await own.create({ GLOBAL: "g'lobal\"" });
});

after(() => own[Symbol.asyncDispose]());

const leave = (code: string, afterMs: number): Promise<void> => sandbox.leave(code, afterMs);
const metric = (name: string, server = own): Promise<number> => server.metric(name);

function isThere(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

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
      const lines: string[] = [];
      const log = createLogger("warn", { write: (line) => void lines.push(line) });
      await using broken = await startCodeServer({ python }, {}, log);
      const other = await broken.create();
      const answer = await other.fetch("/execute", { method: "POST", body: '{"code": "1"}' });
      const body = await answer.text();
      assert.equal(answer.status, 500);
      assert.match(body, reason);
      // The SDK for JavaScript shows the status line alone.
      assert.equal(answer.statusText, body);
      assert.match(lines.join(""), /"language":"python".*"msg":"kernel did not start"/);
    }
  });

  it("a language without a kernel is refused with its reason, also in the status line, and logged", async () => {
    const lines: string[] = [];
    const log = createLogger("info", { write: (line) => void lines.push(line) });
    await using logged = await startCodeServer({}, {}, log);
    const other = await logged.create();
    const body = JSON.stringify({ code: "1", language: "c\u00f6bol\r\nx: y" });
    const answer = await other.fetch("/execute", { method: "POST", body });
    assert.equal(answer.headers.get("x"), null);
    assert.match(
      answer.statusText,
      /^Failed to create context: \{"message": "The 'c bol\\r\\nx: y' kernel is not/,
    );
    assert.match(lines.join(""), /The 'c\u00f6bol.*"msg":"code was refused"/);
  });

  it("a kernel that fails slowly is told in the stream, whose head comes before it, and its output is logged", async (context) => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-slow-"));
    context.after(() => rm(directory, { recursive: true }));
    const python = join(directory, "python");
    const script = `#!/bin/sh\nuntil [ -e ${directory}/go ]; do sleep 0.05; done\necho first >&2\necho no ipykernel >&2\nexit 1\n`;
    await writeFile(python, script, { mode: 0o755 });
    const lines: string[] = [];
    const log = createLogger("warn", { write: (line) => void lines.push(line) });
    await using broken = await startCodeServer({ python }, {}, log);
    const other = await broken.create();
    const answer = await other.fetch("/execute", { method: "POST", body: '{"code": "1"}' });
    assert.equal(answer.status, 200);
    await writeFile(join(directory, "go"), "");
    const [error, end] = (await answer.text()).trim().split("\n");
    assert.deepEqual(JSON.parse(error ?? ""), {
      type: "error",
      name: "UnexpectedEndOfExecution",
      value: "Failed to create context: the kernel ended while it started (exit code 1): no ipykernel",
      traceback: "",
    });
    assert.equal(end, '{"type": "end_of_execution"}');
    assert.match(lines.join(""), /"output":"first\\nno ipykernel\\n"/);
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
