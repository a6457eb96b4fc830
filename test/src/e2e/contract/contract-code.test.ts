import assert from "node:assert/strict";
import { before, it } from "node:test";
import { type Context, type Execution, NotFoundError, Sandbox, SandboxError } from "@e2b/code-interpreter";
import jupyter from "@coppice/plugin-jupyter";
import { endOf, TIMED_OUT } from "../../harness/clients/end-of-call.js";
import { onEachBackend } from "../../harness/server/on-each-backend.js";

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const PNG_MAGIC = "89504e470d0a1a0a";
const KEEPALIVE_MS = 300;
const SLOWEST_MS = 20_000;
// The SDK does not clear the timer of a refused request: its default time-out would keep this process running.
const REFUSED = { requestTimeoutMs: 2_000 };

interface Line {
  readonly type: string;
  readonly [field: string]: unknown;
}

// Titles are the rows of the interface of E2B's code interpreter: endpoints (E.3), lines of the stream (E.4),
// behaviour of an execution (E.5), and defects that this server does not have (E.6). Raw requests are for what the
// SDK does not show.
onEachBackend(
  "the contract of the code interpreter",
  ({ server }) => {
    let sandbox: Sandbox;
    /** A context beside the default one, for cells that must not affect the next row. */
    let context: Context;

    before(async () => {
      sandbox = await Sandbox.create({ envs: { GLOBAL: "g" } });
      context = await sandbox.createCodeContext({ cwd: "/tmp" });
    });

    const run = (code: string, timeoutMs = SLOWEST_MS): Promise<Execution> =>
      sandbox.runCode(code, { context, timeoutMs });

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

    const answerTo = async (path: string, init: RequestInit): Promise<[status: number, text: string]> => {
      const response = await request(path, init);
      return [response.status, await response.text()];
    };

    async function textOf(body: object): Promise<string> {
      return (await post("/execute", body)).text();
    }

    /** The lines of an execution, keepalives left out. */
    async function linesOf(body: object): Promise<readonly Line[]> {
      const text = await textOf(body);
      assert.match(text, /^[\x20-\x7e\n]*$/, "ASCII alone");
      return text
        .trimEnd()
        .split("\n")
        .map((line) => JSON.parse(line) as Line)
        .filter(({ type }) => type !== "keepalive");
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

    it("E.3 GET /health: 200 and the JSON string OK", async () => {
      assert.deepEqual(await answerTo("/health", {}), [200, '"OK"']);
    });

    it("E.3 POST /execute: 200, chunked, without a content type; 400, 404, 422, 500", async () => {
      const ran = await post("/execute", { code: "1" });
      assert.deepEqual(
        [ran.status, ran.headers.get("content-type"), ran.headers.get("transfer-encoding")],
        [200, null, "chunked"],
      );
      await ran.text();
      const both = await post("/execute", { code: "1", context_id: "a", language: "python" });
      assert.deepEqual(
        [both.status, await both.text()],
        [400, "Only one of context_id or language can be provided"],
      );
      const unknown = { id: "no-such-context", language: "python", cwd: "/" };
      await assert.rejects(sandbox.runCode("1", { context: unknown, ...REFUSED }), (error) => {
        assert.ok(error instanceof NotFoundError);
        assert.match(error.message, /Context no-such-context not found/);
        return true;
      });
      await assert.rejects(sandbox.runCode("1", { language: "cobol", ...REFUSED }), (error) => {
        assert.ok(error instanceof SandboxError);
        assert.match(error.message, /^500 /);
        return true;
      });
      assert.match(
        await textOf({ code: "1", language: "cobol" }),
        /^Failed to create context: \{"message": "The 'cobol' kernel is not available\..*", "short_message": "cobol not found"\}$/,
      );
      for (const body of [{}, { code: 1 }, { code: "1", env_vars: ["A"] }]) {
        const refused = await post("/execute", body);
        assert.equal(refused.status, 422);
        assert.ok(Array.isArray(((await refused.json()) as { readonly detail: unknown }).detail));
      }
    });

    it("E.3 POST /contexts: 200 with id, language and cwd; 422, 500", async () => {
      assert.match(context.id, UUID);
      assert.deepEqual(context, { id: context.id, language: "python", cwd: "/tmp" });
      const refused = await post("/contexts", { language: "cobol" });
      assert.equal(refused.status, 500);
      assert.match(await refused.text(), /^Failed to create context: \{"message"/);
      assert.equal((await post("/contexts", { cwd: 1 })).status, 422);
    });

    it("E.3 GET /contexts: 200, in the order of their creation, python and javascript first", async () => {
      const made = await sandbox.createCodeContext({ language: "bash" });
      const listed = await sandbox.listCodeContexts();
      assert.deepEqual(
        listed.slice(0, 2).map(({ language }) => language),
        ["python", "javascript"],
      );
      const view = ({ id, language, cwd }: Context) => ({ id, language, cwd });
      assert.deepEqual(listed.slice(2).map(view), [context, made].map(view));
      await sandbox.removeCodeContext(made);
    });

    it("E.3 POST /contexts/{id}/restart: 200 null, 404, 500", async () => {
      await sandbox.files.makeDir("/tmp/row-e3");
      const { id } = await sandbox.createCodeContext({ language: "bash", cwd: "/tmp/row-e3" });
      const restart = (): Promise<[number, string]> =>
        answerTo(`/contexts/${id}/restart`, { method: "POST" });
      assert.deepEqual(await restart(), [200, "null"]);
      await sandbox.files.remove("/tmp/row-e3");
      assert.deepEqual(await restart(), [500, `Failed to restart context ${id}`]);
      await sandbox.removeCodeContext(id);
      assert.deepEqual(await restart(), [404, `Context ${id} not found`]);
      await assert.rejects(sandbox.restartCodeContext(id), NotFoundError);
    });

    // The contract's 500 does not occur here: a kernel that does not answer is killed.
    it("E.3 DELETE /contexts/{id}: 200 null, 404", async () => {
      const { id } = await sandbox.createCodeContext({ language: "bash" });
      const remove = (): Promise<[number, string]> => answerTo(`/contexts/${id}`, { method: "DELETE" });
      assert.deepEqual(await remove(), [200, "null"]);
      assert.deepEqual(await remove(), [404, `Context ${id} not found`]);
      await assert.rejects(sandbox.removeCodeContext(id), NotFoundError);
    });

    it("E.3 languages: trimmed, in any case, by their aliases, each with one default context", async () => {
      for (const language of ["python", " Python ", "PYTHON3", ""])
        assert.equal((await sandbox.runCode("x", { language })).text, "42", language);
      const node = "globalThis.count = (globalThis.count ?? 0) + 1";
      const counts = await Promise.all(
        ["javascript", "js", " JS\n"].map((language) => sandbox.runCode(node, { language })),
      );
      assert.deepEqual(new Set(counts.map(({ text }) => text)), new Set(["1", "2", "3"]));
      const typed = await Promise.all(
        ["ts", "TypeScript"].map((language) => sandbox.runCode("1 + 1", { language })),
      );
      assert.deepEqual(
        typed.map(({ text }) => text),
        ["2", "2"],
      );
      const shell = await sandbox.runCode("echo $BASH_VERSION", { language: " BASH" });
      assert.match(shell.logs.stdout.join(""), /^\d/);
      const languages = (await sandbox.listCodeContexts()).map(({ language }) => language).toSorted();
      assert.deepEqual(languages, ["bash", "javascript", "python", "python", "typescript"]);
    });

    it("E.3 cwd: the user's home, or what was asked for", async () => {
      assert.equal(
        (await sandbox.runCode("import os; os.path.realpath('.') == os.path.realpath(os.environ['HOME'])"))
          .text,
        "True",
      );
      const [js, bash] = ["process.cwd() === process.env.HOME", '[ "$(pwd -P)" = "$(realpath ~)" ]'];
      assert.equal((await sandbox.runCode(js, { language: "js" })).text, "true");
      assert.equal((await sandbox.runCode(bash, { language: "bash" })).error, undefined);
      assert.equal((await run("import os; os.getcwd()[-4:]")).text, "/tmp");
    });

    it("E.4 number_of_executions: the first line, with the count", async () => {
      const [first, ...others] = await linesOf({ code: "print(1)" });
      assert.deepEqual(Object.keys(first ?? {}), ["type", "execution_count"]);
      assert.equal(first?.["type"], "number_of_executions");
      assert.ok(!others.some(({ type }) => type === "number_of_executions"));
      const { executionCount } = await sandbox.runCode("1");
      assert.equal(executionCount, Number(first["execution_count"]) + 1);
    });

    it("E.4 stdout and stderr: text and timestamp", async () => {
      const code = "import sys; print('é', flush=True); print('€', file=sys.stderr)";
      const lines = (await linesOf({ code })).slice(1, -1);
      for (const [line, type, text] of [
        [lines[0], "stdout", "é\n"],
        [lines[1], "stderr", "€\n"],
      ] as const) {
        assert.deepEqual(Object.keys(line ?? {}), ["type", "text", "timestamp"]);
        assert.deepEqual([line?.type, line?.["text"]], [type, text]);
        const timestamp = String(line?.["timestamp"]);
        assert.match(timestamp, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00$/);
        assert.ok(Math.abs(Date.parse(timestamp) - Date.now()) < 60_000, timestamp);
      }
      const seen: string[] = [];
      await sandbox.runCode(code, {
        onStdout: ({ line, error }) => void seen.push(`${line} ${error}`),
        onStderr: ({ line, error }) => void seen.push(`${line} ${error}`),
      });
      assert.deepEqual(seen, ["é\n false", "€\n true"]);
    });

    it("E.4 result: a field for each MIME type, any other in extra, which is always there, and is_main_result", async () => {
      const fields = {
        "text/plain": ["text", "t"],
        "text/html": ["html", "<i>"],
        "text/markdown": ["markdown", "*m*"],
        "image/svg+xml": ["svg", "<svg/>"],
        "image/png": ["png", "cG5n"],
        "image/jpeg": ["jpeg", "anBn"],
        "application/pdf": ["pdf", "cGRm"],
        "text/latex": ["latex", "$x$"],
        "application/json": ["json", { a: [1] }],
        "application/javascript": ["javascript", "f()"],
        "e2b/data": ["data", { c: [1] }],
        "e2b/chart": ["chart", { type: "line" }],
      } as const;
      const bundle = Object.fromEntries(Object.entries(fields).map(([mime, [, value]]) => [mime, value]));
      const code =
        `import json\ndisplay(json.loads(${JSON.stringify(JSON.stringify(bundle))}), raw=True)\n` +
        "display({'x/y': {'b': 2}}, raw=True)\n'value'";
      const results = (await linesOf({ code })).filter(({ type }) => type === "result");
      assert.deepEqual(results, [
        { type: "result", ...Object.fromEntries(Object.values(fields)), extra: {}, is_main_result: false },
        { type: "result", extra: { "x/y": { b: 2 } }, is_main_result: false },
        { type: "result", text: "value", extra: {}, is_main_result: true },
      ]);
      const { results: told } = await sandbox.runCode(code);
      assert.deepEqual(told[0]?.formats().toSorted(), [
        "data",
        "html",
        "javascript",
        "jpeg",
        "json",
        "latex",
        "markdown",
        "pdf",
        "png",
        "svg",
      ]);
      assert.deepEqual(
        told.map(({ text, isMainResult }) => [text, isMainResult]),
        [
          ["t", false],
          [undefined, false],
          ["value", true],
        ],
      );
    });

    it("E.4 result: numbers are as they were written", async () => {
      const text = await textOf({
        code: "{'a': 1.0, 'b': 12345678901234567890, 'c': 1e-7, 'd': float('nan')}",
      });
      assert.match(text, /"json": \{"a": 1\.0, "b": 12345678901234567890, "c": 1e-07, "d": null\}/);
    });

    it("E.4 text: one pair of the same quotes around it goes", async () => {
      for (const [code, text] of [
        ["'hello'", "hello"],
        ['"it\'s"', "it's"],
        ["''", ""],
        ["'\"quoted\"'", '"quoted"'],
        ["b'x'", "b'x'"],
        ["['a']", "['a']"],
      ] as const)
        assert.equal((await sandbox.runCode(code)).text, text, code);
    });

    it("E.4 error: name, value and traceback without separators and colours, one at most", async () => {
      const lines = await linesOf({ code: "try:\n    1/0\nfinally:\n    raise ValueError('v')" });
      const errors = lines.filter(({ type }) => type === "error");
      assert.equal(errors.length, 1);
      assert.deepEqual(Object.keys(errors[0] ?? {}), ["type", "name", "value", "traceback"]);
      assert.deepEqual([errors[0]?.["name"], errors[0]?.["value"]], ["ValueError", "v"]);
      const traceback = String(errors[0]?.["traceback"]);
      assert.match(traceback, /ZeroDivisionError[^]*ValueError: v$/);
      assert.ok(!traceback.includes("\u001b"));
      assert.deepEqual(
        lines.slice(-2).map(({ type }) => type),
        ["error", "end_of_execution"],
      );
    });

    it("E.4 keepalive: after each silence, of five seconds if nothing else is configured", async () => {
      const text = await textOf({ code: `import time; time.sleep(${(4 * KEEPALIVE_MS) / 1000})` });
      assert.ok(text.split("\n").filter((line) => line === '{"type": "keepalive"}').length >= 2, text);
      const { keepalive } = jupyter.config.parse({}) as { readonly keepalive: number };
      assert.equal(keepalive, 5_000);
    });

    it("E.4 end_of_execution: the last line, always, as it is written", async () => {
      for (const code of ["1", "1/0", "", "def f(:"])
        assert.ok((await textOf({ code })).endsWith('\n{"type": "end_of_execution"}\n'), code);
    });

    it("E.4 stdout is told in large pieces", async () => {
      const printed = await sandbox.runCode("for n in range(100_000): print(n)");
      assert.ok(printed.logs.stdout.length < 100, `${printed.logs.stdout.length} pieces`);
      assert.equal(printed.logs.stdout.join("").length, 588_890);
    });

    it("E.4 a semicolon gives no result, an empty cell does not count, input() fails", async () => {
      assert.deepEqual((await sandbox.runCode("1;")).results, []);
      const before = (await sandbox.runCode("1")).executionCount ?? 0;
      assert.deepEqual(
        (await linesOf({ code: "" })).map(({ type }) => type),
        ["number_of_executions", "end_of_execution"],
      );
      assert.equal((await sandbox.runCode("1")).executionCount, before + 1);
      assert.equal((await sandbox.runCode("input()")).error?.name, "StdinNotImplementedError");
    });

    it("E.4 set-up: whole sequences, JSON of lists and dictionaries, data of DataFrames, saved images, no viewer", async () => {
      const list = await sandbox.runCode("list(range(2000))");
      assert.match(list.text ?? "", /1999\]$/);
      assert.deepEqual(
        list.results[0]?.json,
        Array.from({ length: 2000 }, (_, index) => index),
      );
      assert.deepEqual((await sandbox.runCode("{'a': (1, None)}")).results[0]?.json, { a: [1, null] });
      const frame = await sandbox.runCode(
        "import pandas as pd; pd.DataFrame({'a': [1, 2], 't': pd.to_datetime(['2024-01-02', '2024-01-03'])})",
      );
      assert.deepEqual(frame.results[0]?.data, {
        a: [1, 2],
        t: ["2024-01-02T00:00:00", "2024-01-03T00:00:00"],
      });
      const { results } = await sandbox.runCode(
        "from PIL import Image\nimage = Image.new('RGB', (2, 2))\nimage.save('/tmp/row-e4.png')\nimage.show()",
      );
      assert.deepEqual(
        results.map(({ png }) =>
          Buffer.from(png ?? "", "base64")
            .subarray(0, 8)
            .toString("hex"),
        ),
        [PNG_MAGIC, PNG_MAGIC],
      );
      await sandbox.files.remove("/tmp/row-e4.png");
    });

    it("E.4 charts: each type, with the fields that clients know", async () => {
      const labels = ["x_label", "y_label", "x_unit", "y_unit"];
      const axes = ["x_ticks", "x_tick_labels", "x_scale", "y_ticks", "y_tick_labels", "y_scale"];
      const box = ["label", "min", "first_quartile", "median", "third_quartile", "max", "outliers"];
      for (const [type, code, fields, element] of [
        ["line", "plt.plot([1, 2])", [...labels, ...axes], ["label", "points"]],
        ["scatter", "plt.scatter([1, 2], [3, 4])", [...labels, ...axes], ["label", "points"]],
        ["bar", "plt.bar(['a'], [1])", labels, ["label", "group", "value"]],
        ["pie", "plt.pie([1, 2], labels=['a', 'b'])", [], ["label", "angle", "radius"]],
        ["box_and_whisker", "plt.boxplot([1, 2, 3])", labels, box],
        ["superchart", "a, b = plt.subplots(1, 2)[1]; a.plot([1]); b.plot([2])", [], undefined],
        ["unknown", "plt.imshow([[1]])", [], undefined],
      ] as const) {
        const { results } = await sandbox.runCode(
          `import matplotlib.pyplot as plt\n${code}\nplt.title('T')\nplt.show()`,
        );
        const { elements, ...chart } = { ...results[0]?.chart } as Record<string, unknown>;
        assert.equal(chart["type"], type);
        assert.deepEqual(Object.keys(chart).toSorted(), ["title", "type", ...fields].toSorted(), type);
        const [first] = elements as readonly object[];
        if (element !== undefined)
          assert.deepEqual(new Set(Object.keys(first ?? {})), new Set<string>(element), type);
        if (type === "superchart")
          assert.deepEqual(
            (elements as Line[]).map((one) => one.type),
            ["line", "line"],
          );
      }
    });

    it("E.5 execute_request: counted, in the history, not silent, and an error stops nothing that waits", async () => {
      const [first, failed, next] = await Promise.all([
        run("'kept'"),
        run("1/0"),
        run("(_, In[-1], Out[max(Out)])"),
      ]);
      assert.equal(failed?.error?.name, "ZeroDivisionError");
      assert.equal(next?.text, "('kept', '(_, In[-1], Out[max(Out)])', 'kept')");
      assert.equal(next.executionCount, (first?.executionCount ?? 0) + 2);
    });

    it("E.5 one execution at a time in a context, in their order, headers at once; several contexts at once", async () => {
      const order: string[] = [];
      const first = sandbox.runCode(
        "import os, time\nwhile not os.path.exists('/tmp/row-e5'): time.sleep(0.01)\nx = 43",
      );
      void first.then(() => order.push("first"));
      const waiting = await post("/execute", { code: "x" });
      const second = sandbox.runCode("x").then(({ text }) => order.push(`second ${text}`));
      assert.equal((await run("3")).text, "3");
      assert.deepEqual(order, [], "and the headers of what waits are there");
      await run("open('/tmp/row-e5', 'w').close()");
      assert.match(await waiting.text(), /"text": "43"/);
      await second;
      assert.deepEqual(order, ["first", "second 43"]);
      await run("import os; os.remove('/tmp/row-e5')");
      await sandbox.runCode("x = 42");
    });

    it("E.5 global variables are in every context, whatever language it has", async () => {
      assert.equal((await run("import os; os.environ['GLOBAL']")).text, "g");
      assert.equal((await sandbox.runCode("process.env.GLOBAL", { language: "js" })).text, "g");
      assert.equal((await sandbox.runCode("echo $GLOBAL", { language: "bash" })).logs.stdout.join(""), "g\n");
    });

    it("E.5 env_vars are there for one execution, and the global ones come back", async () => {
      const envs = { GLOBAL: "mine", OWN: "o" };
      for (const [language, code, during, after] of [
        ["python", "import os; print(os.environ['GLOBAL'], os.environ.get('OWN'))", "mine o\n", "g None\n"],
        ["js", "console.log(process.env.GLOBAL, process.env.OWN)", "mine o\n", "g undefined\n"],
        ["bash", "echo $GLOBAL ${OWN-none}", "mine o\n", "g none\n"],
      ] as const) {
        const stdout = async (options: object): Promise<string> =>
          (await sandbox.runCode(code, { language, ...options })).logs.stdout.join("");
        assert.equal(await stdout({ envs }), during, language);
        assert.equal(await stdout({}), after, language);
      }
    });

    it("E.5 a client that leaves: the code is interrupted, the next one runs with the same state", async () => {
      assert.equal(await endOf(sandbox.runCode("while True: pass", { timeoutMs: 500 })), TIMED_OUT);
      assert.equal((await sandbox.runCode("x", { timeoutMs: SLOWEST_MS })).text, "42");
    });

    it("E.5 restart: what runs ends as UnexpectedEndOfExecution; id, directory and variables stay, the count begins anew", async () => {
      const begun = Promise.withResolvers<void>();
      const running = sandbox.runCode(
        "import os, time; y = 1; os.chdir('/'); os.environ.clear(); print(1, flush=True); time.sleep(100)",
        { context, onStdout: () => begun.resolve() },
      );
      await begun.promise;
      await sandbox.restartCodeContext(context);
      const { error } = await running;
      assert.deepEqual(
        [error?.name, error?.value, error?.traceback],
        [
          "UnexpectedEndOfExecution",
          "Connection to the execution was closed before the execution was finished",
          "",
        ],
      );
      const after = await run("import os; ('y' in globals(), os.environ['GLOBAL'], os.getcwd()[-4:])");
      assert.deepEqual([after.text, after.executionCount], ["(False, 'g', '/tmp')", 1]);
    });

    it("E.5 the kernel's death: ContextRestarting, and the next code finds variables and directory as at the start", async () => {
      const { error } = await run("import os; os.chdir('/'); os.environ.clear(); os._exit(1)");
      assert.deepEqual(
        [error?.name, error?.value, error?.traceback],
        ["ContextRestarting", "Context was restarted", ""],
      );
      const after = await run("import os; (os.environ['GLOBAL'], os.getcwd()[-4:])");
      assert.deepEqual([after.text, after.executionCount], ["('g', '/tmp')", 1]);
    });

    it("E.5 exit() ends without an error, and the next code runs afresh", async () => {
      assert.equal((await run("y = 1; exit()")).error, undefined);
      const after = await run("'y' in globals()");
      assert.deepEqual([after.text, after.executionCount, after.error], ["False", 1, undefined]);
    });

    it("E.5 a lost connection to the kernel: what runs ends with an error, the next code runs", async () => {
      const broken = await run(
        "import gc, time, zmq\nfor found in gc.get_objects():\n    if isinstance(found, zmq.Context): found.destroy()\n" +
          "time.sleep(100)",
      );
      assert.ok(["UnexpectedEndOfExecution", "ContextRestarting"].includes(broken.error?.name ?? ""));
      assert.equal((await run("1 + 1")).text, "2");
    });

    it("E.6-1 an execution right after one that timed out answers, time after time", async () => {
      for (let round = 0; round < 10; round++) {
        const ended = await endOf(run("while True: pass", 1 + 20 * round));
        assert.equal(ended, TIMED_OUT, `round ${round}`);
        assert.equal((await run("'answered'")).text, "answered", `round ${round}`);
      }
    });

    it("E.6-2 variables cost no second execution", async () => {
      await run("runs = []\nget_ipython().events.register('pre_execute', lambda: runs.append(1))");
      const { executionCount } = await sandbox.runCode("runs.clear()", { context, envs: { A: "b" } });
      const after = await sandbox.runCode("len(runs)", { context, envs: { A: "c" } });
      assert.deepEqual([after.text, after.executionCount], ["1", (executionCount ?? 0) + 1]);
    });

    it("E.6-3 whatever is in the value of a variable is its value, and lines are the user's", async () => {
      const envs = { QUOTED: `it's "so"\n$HOME \`x\` \\ ''' é😀`, EMPTY: "" };
      const { logs } = await sandbox.runCode(
        "import os; print(os.environ['QUOTED'], end=os.environ['EMPTY'])",
        {
          context,
          envs,
        },
      );
      assert.equal(logs.stdout.join(""), envs.QUOTED);
      const shell = await sandbox.runCode('printf %s "$QUOTED"', { language: "bash", envs });
      assert.equal(shell.logs.stdout.join(""), envs.QUOTED);
      const node = await sandbox.runCode("process.stdout.write(process.env.QUOTED)", {
        language: "js",
        envs,
      });
      assert.equal(node.logs.stdout.join(""), envs.QUOTED);
      const { error } = await sandbox.runCode("pass\n1/0", { context, envs });
      assert.match(error?.traceback ?? "", /line 2|----> 2/);
    });

    it("E.6-3 a context whose directory does not exist is refused", async () => {
      const refused = await post("/contexts", { cwd: "/does/not/exist" });
      assert.deepEqual(
        [refused.status, await refused.text()],
        [400, "Failed to create context: cwd '/does/not/exist' does not exist"],
      );
      await assert.rejects(sandbox.createCodeContext({ cwd: "/does/not/exist" }), SandboxError);
    });
  },
  { settings: { jupyter: { keepalive: `${KEEPALIVE_MS}ms` } }, timeoutMs: 120_000 },
);
