import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import jupyter from "@coppice/plugin-jupyter";
import { type ShellServer, startShellServer } from "../testing/shell-server.js";

const python = process.env["COPPICE_PYTHON"] ?? "python3";

describe("code over HTTP", { timeout: 120_000 }, () => {
  let shell: ShellServer;
  before(async () => {
    shell = await startShellServer({}, [[jupyter, { python, node: process.execPath, maxContexts: 3 }]]);
  });
  after(() => shell[Symbol.asyncDispose]());

  const run = async (body: object) => {
    const events = await shell.events("POST", "/api/execute/code", body);
    return events.map(({ timestamp, ...rest }) => {
      assert.ok(timestamp);
      return rest;
    });
  };
  const refused = async (path: string, body: unknown, status: number, code: string) => {
    const answer = await shell.json("POST", path, body, status);
    assert.equal(answer["code"], code, JSON.stringify(answer));
    return answer;
  };

  it("a context is made, keeps its state, is listed and deleted", async () => {
    assert.equal((await shell.json("GET", "/api/interpreter/health"))["success"], true);
    const made = await shell.json("POST", "/api/contexts", {
      language: "python",
      cwd: "/workspace",
      env_vars: { OWN: "1" },
    });
    assert.deepEqual([made["success"], made["language"], made["cwd"]], [true, "python", "/workspace"]);
    const id = String(made["contextId"]);
    assert.deepEqual(
      await run({ context_id: id, language: "python", code: "import os; x = os.environ['OWN']" }),
      [{ type: "execution_complete", execution_count: 1 }],
    );
    assert.deepEqual(await run({ context_id: id, code: "print(x); x + '2'" }), [
      { type: "stdout", text: "1\n" },
      { type: "result", text: "'12'", metadata: {} },
      { type: "execution_complete", execution_count: 2 },
    ]);
    const { contexts } = await shell.json("GET", "/api/contexts");
    const listed = (contexts as { id: string }[]).find((context) => context.id === id);
    assert.deepEqual(listed, { id, language: "python", cwd: "/workspace" });
    assert.equal((await shell.json("DELETE", `/api/contexts/${id}`))["contextId"], id);
    const gone = await shell.json("DELETE", `/api/contexts/${id}`, undefined, 404);
    assert.equal(gone["code"], "CONTEXT_NOT_FOUND");
    const failed = await refused(
      "/api/execute/code",
      { context_id: id, code: "1" },
      404,
      "CONTEXT_NOT_FOUND",
    );
    assert.equal(failed["error"], failed["message"]);
    assert.deepEqual(failed["details"], {});
  });

  it("code without a context runs in the default one of its language", async () => {
    const events = await run({ code: "console.log(1 + 1)", language: "javascript" });
    assert.deepEqual(events[0], { type: "stdout", text: "2\n" });
    assert.deepEqual((await run({ code: "1" })).at(0), { type: "result", text: "1", metadata: {} });
  });

  it("errors are events, with their traceback in lines", async () => {
    const [error, end, ...more] = await run({ code: "1/0" });
    assert.deepEqual([error?.["ename"], error?.["evalue"]], ["ZeroDivisionError", "division by zero"]);
    const traceback = error?.["traceback"] as readonly string[];
    assert.match(
      traceback.join("\n"),
      /^-+\nZeroDivisionError +Traceback[^\n]*\n.*\nZeroDivisionError: division by zero$/s,
    );
    assert.deepEqual([end?.["type"], more], ["execution_complete", []]);
  });

  it("output comes while the code runs", async () => {
    const answer = await shell.ask("POST", "/api/execute/code", {
      code: "import time\nprint('first', flush=True)\ntime.sleep(60)",
    });
    const reader = answer.body?.getReader();
    const { value } = (await reader?.read()) ?? {};
    assert.match(Buffer.from(value ?? []).toString(), /"text":"first\\n"/);
    await reader?.cancel();
    assert.equal((await run({ code: "print('next')" })).length, 2);
  });

  it("code is interrupted when its time is over", async () => {
    const events = await run({ code: "import time\nwhile True: time.sleep(0.01)", timeout_ms: 500 });
    assert.deepEqual(events[0], {
      type: "error",
      ename: "TimeoutError",
      evalue: "Execution timed out after 500 ms",
      traceback: [],
    });
    assert.equal(events.at(-1)?.["type"], "execution_complete");
    assert.equal((await run({ code: "print('next')" })).length, 2);
  });

  it("what cannot be made is refused", async () => {
    await refused("/api/contexts", { language: "cobol" }, 400, "VALIDATION_FAILED");
    await refused("/api/contexts", { cwd: "/none" }, 404, "FILE_NOT_FOUND");
    const results = [];
    for (let count = 0; count < 4; count++) results.push(await shell.ask("POST", "/api/contexts", {}));
    assert.equal(results.at(-1)?.status, 429);
    for (const answer of results) await answer.text();
  });

  it("hostile requests are refused", async () => {
    for (const wrong of [
      { language: 1 },
      { cwd: "a\0b" },
      { cwd: 1 },
      { env_vars: { "a=b": "1" } },
      { env_vars: [] },
    ])
      await refused("/api/contexts", wrong, 400, "VALIDATION_FAILED");
    for (const wrong of [
      {},
      { code: 1 },
      { code: "1", context_id: 1 },
      { code: "1", timeout_ms: -1 },
      "{",
      "[]",
    ])
      await refused("/api/execute/code", wrong, 400, "VALIDATION_FAILED");
    await refused("/api/execute/code", { code: "1", language: "cobol" }, 400, "VALIDATION_FAILED");
  });
});

describe("code over HTTP, without the plugin that runs it", { timeout: 60_000 }, () => {
  it("is refused with a status that clients do not try again for", async () => {
    await using shell = await startShellServer();
    const refusals = [
      ["GET", "/api/interpreter/health", undefined],
      ["GET", "/api/contexts", undefined],
      ["POST", "/api/contexts", { language: "javascript" }],
      ["DELETE", "/api/contexts/x", undefined],
      ["POST", "/api/execute/code", { code: "1" }],
    ] as const;
    for (const [method, path, body] of refusals) {
      const { code } = await shell.json(method, path, body, 501);
      assert.match(
        String(code),
        body !== undefined && "language" in body ? /^JAVASCRIPT_/ : /^PYTHON_NOT_AVAILABLE$/,
      );
    }
  });
});
