import assert from "node:assert/strict";
import { before, it } from "node:test";
import { NotFoundError, Sandbox, SandboxError } from "@e2b/code-interpreter";
import { onEachBackend } from "../harness/on-each-backend.js";

const PNG_MAGIC = "89504e470d0a1a0a";
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

interface Line {
  readonly type: string;
  readonly [field: string]: unknown;
}

// The names are the rows of the interface of E2B's code interpreter: its endpoints (E.3), the lines of its stream
// (E.4), what an execution does (E.5). Bare requests are for what the SDK does not show.
onEachBackend("the contract of the code interpreter", ({ server }) => {
  let sandbox: Sandbox;

  before(async () => {
    sandbox = await Sandbox.create({ envs: { GLOBAL: "g" } });
  });

  function request(path: string, init: RequestInit = {}): Promise<Response> {
    return fetch(server().url + path, {
      ...init,
      headers: {
        "content-type": "application/json",
        "e2b-sandbox-id": sandbox.sandboxId,
        "e2b-sandbox-port": "49999",
        "x-access-token": (sandbox as unknown as { envdAccessToken: string }).envdAccessToken,
      },
    });
  }

  const post = (path: string, body?: object): Promise<Response> =>
    request(path, { method: "POST", ...(body && { body: JSON.stringify(body) }) });

  async function linesOf(body: object): Promise<readonly Line[]> {
    const text = await (await post("/execute", body)).text();
    assert.match(text, /^[\x20-\x7e\n]*$/, "ASCII alone");
    assert.ok(text.endsWith('{"type": "end_of_execution"}\n'), text.slice(-100));
    return text
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line) as Line);
  }

  it("the seven checks of the original's rig", async () => {
    const hello = await sandbox.runCode("print('hello')");
    assert.deepEqual(hello.logs.stdout, ["hello\n"], "1 hello");
    const set = await sandbox.runCode("x = 42");
    assert.deepEqual([set.logs.stdout, set.results], [[], []], "2 state is set");
    assert.deepEqual((await sandbox.runCode("print(x)")).logs.stdout, ["42\n"], "3 state is read");
    const array = await sandbox.runCode("import numpy as np; np.array([1,2,3])");
    const [main, ...others] = array.results;
    assert.deepEqual(
      [main?.text, main?.isMainResult, others],
      ["array([1, 2, 3])", true, []],
      "4 the repr of numpy",
    );
    const shown = await sandbox.runCode(
      "import pandas as pd\nfrom IPython.display import display\ndisplay(pd.DataFrame({'a':[1,2], 'b':[3,4]}))",
    );
    assert.match(shown.results[0]?.html ?? "", /<table[^>]*dataframe/, "5 a DataFrame as HTML");
    const plot = await sandbox.runCode(
      "import io, matplotlib.pyplot as plt\nfrom IPython.display import display, Image\nplt.plot([1, 4, 9])\n" +
        "buffer = io.BytesIO(); plt.savefig(buffer, format='png'); plt.close()\ndisplay(Image(buffer.getvalue()))",
    );
    const png = Buffer.from(plot.results[0]?.png ?? "", "base64");
    assert.equal(png.subarray(0, 8).toString("hex"), PNG_MAGIC, "6 a plot as PNG");
    const { error } = await sandbox.runCode("undefined_variable");
    assert.deepEqual(
      [error?.name, error?.value, error?.traceback.includes("NameError")],
      ["NameError", "name 'undefined_variable' is not defined", true],
      "7 an exception",
    );
  });

  it("E.3 GET /health", async () => {
    const response = await request("/health");
    assert.deepEqual([response.status, await response.text()], [200, '"OK"']);
  });

  it("E.3 POST /execute: 200 without a content type, 400, 404, 422, 500", async () => {
    const ran = await post("/execute", { code: "1" });
    assert.deepEqual([ran.status, ran.headers.get("content-type")], [200, null]);
    await ran.text();
    const both = await post("/execute", { code: "1", context_id: "a", language: "python" });
    assert.deepEqual(
      [both.status, await both.text()],
      [400, "Only one of context_id or language can be provided"],
    );
    const unknown = { id: "no-such-context", language: "python", cwd: "/" };
    await assert.rejects(sandbox.runCode("1", { context: unknown }), (error) => {
      assert.ok(error instanceof NotFoundError);
      assert.match(error.message, /Context no-such-context not found/);
      return true;
    });
    await assert.rejects(sandbox.runCode("1", { language: "cobol" }), (error) => {
      assert.ok(error instanceof SandboxError);
      assert.match(error.message, /^500 /);
      return true;
    });
    const cobol = await (await post("/execute", { code: "1", language: "cobol" })).text();
    assert.match(
      cobol,
      /^Failed to create context: \{"message": "The 'cobol' kernel is not available\..*", "short_message": "cobol not found"\}$/,
    );
    const nothing = await post("/execute", {});
    assert.equal(nothing.status, 422);
    assert.ok(Array.isArray(((await nothing.json()) as { readonly detail: unknown }).detail));
  });

  it("E.3 POST /contexts: id, language, cwd; 422, 500", async () => {
    const context = await sandbox.createCodeContext();
    assert.match(context.id, UUID);
    assert.equal(context.language, "python");
    const { text: home } = await sandbox.runCode(
      "import os; os.path.realpath('.') == os.path.realpath(os.environ['HOME'])",
      {
        context,
      },
    );
    assert.equal(home, "True");
    await sandbox.removeCodeContext(context);
    const refused = await post("/contexts", { language: "cobol" });
    assert.equal(refused.status, 500);
    assert.match(await refused.text(), /^Failed to create context: /);
    assert.equal((await post("/contexts", { cwd: 1 })).status, 422);
  });

  it("E.3 GET /contexts: in the order of their creation, after python and javascript", async () => {
    const made = [await sandbox.createCodeContext(), await sandbox.createCodeContext({ language: "bash" })];
    const listed = await sandbox.listCodeContexts();
    assert.deepEqual(
      listed.slice(0, 2).map(({ language }) => language),
      ["python", "javascript"],
    );
    assert.deepEqual(
      listed.slice(-2).map(({ id, language, cwd }) => ({ id, language, cwd })),
      made.map(({ id, language, cwd }) => ({ id, language, cwd })),
    );
    for (const context of made) await sandbox.removeCodeContext(context);
  });

  it("E.3 POST /contexts/{id}/restart and DELETE /contexts/{id}: 200 null, 404", async () => {
    const { id } = await sandbox.createCodeContext();
    for (const [path, method] of [
      [`/contexts/${id}/restart`, "POST"],
      [`/contexts/${id}`, "DELETE"],
    ] as const) {
      const done = await request(path, { method });
      assert.deepEqual([done.status, await done.text()], [200, "null"]);
    }
    for (const [path, method] of [
      [`/contexts/${id}/restart`, "POST"],
      [`/contexts/${id}`, "DELETE"],
    ] as const) {
      const missing = await request(path, { method });
      assert.deepEqual([missing.status, await missing.text()], [404, `Context ${id} not found`]);
    }
    await assert.rejects(sandbox.restartCodeContext(id), NotFoundError);
    await assert.rejects(sandbox.removeCodeContext(id), NotFoundError);
  });

  it("E.3 languages: trimmed, in any case, by their aliases", async () => {
    for (const language of ["python", " Python ", "PYTHON3", ""]) {
      assert.equal((await sandbox.runCode("x", { language })).text, "42", language);
    }
    const shell = await sandbox.runCode("echo $BASH_VERSION", { language: " BASH" });
    assert.match(shell.logs.stdout.join(""), /^\d/);
  });

  it("E.4 number_of_executions comes first, end_of_execution last, and absent fields are left out", async () => {
    const lines = await linesOf({ code: "print('é')\n'value'" });
    assert.deepEqual(
      lines.map(({ type }) => type),
      ["number_of_executions", "stdout", "result", "end_of_execution"],
    );
    const [count, stdout, result] = lines;
    assert.deepEqual(Object.keys(count ?? {}), ["type", "execution_count"]);
    assert.equal(stdout?.["text"], "é\n");
    assert.match(String(stdout["timestamp"]), /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(\+00:00|Z)$/);
    assert.deepEqual(result, { type: "result", text: "value", extra: {}, is_main_result: true });
  });

  it("E.4 error has name, value and traceback, and comes once", async () => {
    const lines = await linesOf({ code: "raise ValueError('v')" });
    const errors = lines.filter(({ type }) => type === "error");
    assert.equal(errors.length, 1);
    assert.deepEqual(Object.keys(errors[0] ?? {}), ["type", "name", "value", "traceback"]);
  });

  it("E.4 stdout is told in large pieces, a semicolon gives no result, an empty cell does not count, input() fails", async () => {
    const printed = await sandbox.runCode("for n in range(100_000): print(n)");
    assert.ok(printed.logs.stdout.length < 100, `${printed.logs.stdout.length} pieces`);
    assert.equal(printed.logs.stdout.join("").length, 588_890);
    assert.deepEqual((await sandbox.runCode("1;")).results, []);
    const before = (await sandbox.runCode("1")).executionCount ?? 0;
    assert.deepEqual(
      (await linesOf({ code: "" })).map(({ type }) => type),
      ["number_of_executions", "end_of_execution"],
    );
    assert.equal((await sandbox.runCode("1")).executionCount, before + 1);
    assert.equal((await sandbox.runCode("input()")).error?.name, "StdinNotImplementedError");
  });

  it("E.5 env_vars are there for one execution, whatever is in them, and the global ones come back", async () => {
    const envs = { GLOBAL: "mine", QUOTED: 'it\'s "so"\n$HOME `x`' };
    const during = await sandbox.runCode("import os; (os.environ['GLOBAL'], os.environ['QUOTED'])", { envs });
    assert.equal(during.text, String.raw`('mine', 'it\'s "so"\n$HOME ${"`x`"}')`);
    const { error } = await sandbox.runCode("pass\n1/0", { envs });
    assert.match(error?.traceback ?? "", /line 2|----> 2/, "line numbers are the user's");
    const { text } = await sandbox.runCode("(os.environ['GLOBAL'], 'QUOTED' in os.environ)");
    assert.equal(text, "('g', False)");
  });

  it("E.5 one execution at a time in a context, several contexts at once", async () => {
    const context = await sandbox.createCodeContext();
    const order: string[] = [];
    const first = sandbox.runCode(
      "import os, time\nwhile not os.path.exists('/tmp/row-e5'): time.sleep(0.01)\n1",
    );
    const second = sandbox.runCode("2").then(() => order.push("second"));
    void first.then(() => order.push("first"));
    assert.equal((await sandbox.runCode("3", { context })).text, "3");
    assert.deepEqual(order, []);
    await sandbox.runCode("open('/tmp/row-e5', 'w').close()", { context });
    await second;
    assert.deepEqual(order, ["first", "second"]);
    await sandbox.runCode("import os; os.remove('/tmp/row-e5')", { context });
    await sandbox.removeCodeContext(context);
  });

  it("E.5 a client that leaves: the code is interrupted, the next one runs with the same state", async () => {
    await assert.rejects(sandbox.runCode("while True: pass", { timeoutMs: 700 }), /timed out/);
    assert.equal((await sandbox.runCode("x")).text, "42");
  });

  it("E.5 restart: what runs ends as UnexpectedEndOfExecution; id, directory and variables stay, the count begins anew", async () => {
    const context = await sandbox.createCodeContext({ cwd: "/tmp" });
    await sandbox.runCode("y = 1", { context });
    const begun = Promise.withResolvers<void>();
    const running = sandbox.runCode("import time; print(1, flush=True); time.sleep(100)", {
      context,
      onStdout: () => begun.resolve(),
    });
    await begun.promise;
    await sandbox.restartCodeContext(context);
    assert.equal((await running).error?.name, "UnexpectedEndOfExecution");
    const { text, executionCount } = await sandbox.runCode(
      "import os; ('y' in globals(), os.environ['GLOBAL'], os.getcwd()[-4:])",
      { context },
    );
    assert.deepEqual([text, executionCount], ["(False, 'g', '/tmp')", 1]);
    await sandbox.removeCodeContext(context);
  });

  it("E.5 the kernel's death: ContextRestarting, and the next code finds variables and directory as at the start", async () => {
    const context = await sandbox.createCodeContext({ cwd: "/tmp" });
    const { error } = await sandbox.runCode("import os; os._exit(1)", { context });
    assert.deepEqual(
      [error?.name, error?.value, error?.traceback],
      ["ContextRestarting", "Context was restarted", ""],
    );
    const { text, executionCount } = await sandbox.runCode(
      "import os; (os.environ['GLOBAL'], os.getcwd()[-4:])",
      { context },
    );
    assert.deepEqual([text, executionCount], ["('g', '/tmp')", 1]);
    assert.equal((await sandbox.runCode("exit()", { context })).error, undefined);
    assert.equal((await sandbox.runCode("1 + 1", { context })).text, "2");
    await sandbox.removeCodeContext(context);
  });
});
