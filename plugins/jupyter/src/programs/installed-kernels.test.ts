import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { PYTHON, startCodeServer, type CodeSandbox, type CodeServer } from "../testing/code-server.js";

const LAUNCH = [PYTHON, "-m", "ipykernel_launcher", "-f", "{connection_file}"];

/** A kernel that aborts every request for a while after an error, with tslab's status `abort`. */
const ABORTING = `
import time
from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

class Aborting(Kernel):
    implementation, implementation_version, banner = "aborting", "1", ""
    language_info = {"name": "aborting", "mimetype": "text/plain", "file_extension": ".txt"}
    until = 0.0

    async def do_execute(self, code, *args, **kwargs):
        if code == "fail":
            self.until = time.monotonic() + 0.2
            return {"status": "error", "execution_count": 1, "ename": "Failed", "evalue": "", "traceback": []}
        if code == "never" or time.monotonic() < self.until:
            return {"status": "abort"}
        self.send_response(self.iopub_socket, "stream", {"name": "stdout", "text": code})
        return {"status": "ok", "execution_count": 1, "payload": [], "user_expressions": {}}

IPKernelApp.launch_instance(kernel_class=Aborting)
`;

/** A kernel that knows a few words of R or Java: those that set, unset, show and print. */
const SPEAKING = `
import json, os, re, sys
from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

properties = {}
TEXT = r'("(?:[^"\\\\]|\\\\.)*")'

class Speaking(Kernel):
    implementation, implementation_version, banner = "speaking", "1", ""
    language_info = {"name": "speaking", "mimetype": "text/plain", "file_extension": ".txt"}

    def say(self, kind, **content):
        self.send_response(self.iopub_socket, kind, content)

    async def do_execute(self, code, silent, *args, **kwargs):
        for line in code.split("\\n"):
            texts = [json.loads(text) for text in re.findall(TEXT, line)]
            shape = re.sub(TEXT, "_", line)
            if shape == "System.setProperty(_, _);": properties[texts[0]] = texts[1]
            elif shape == "System.clearProperty(_);": properties.pop(texts[0], None)
            elif shape == "Sys.setenv(_ = _)": os.environ[texts[0]] = texts[1]
            elif shape == "Sys.unsetenv(_)": os.environ.pop(texts[0], None)
            elif shape in ("System.getProperty(_)", "Sys.getenv(_)"):
                shown = (properties if shape.startswith("System") else os.environ).get(texts[0], "none")
                self.say("execute_result", data={"text/plain": shown}, metadata={}, execution_count=1)
            elif shape == "print(_)": self.say("stream", name="stdout", text=texts[0])
            else: sys.exit("not understood: " + line)
        return {"status": "ok", "execution_count": 1, "payload": [], "user_expressions": {}}

IPKernelApp.launch_instance(kernel_class=Speaking)
`;

/**
 * A kernel that finds one of its ports taken at its first starts, as many as its last argument says, or ends at
 * once.
 */
const ROBBED = `
import json, runpy, socket, subprocess, sys
file, name, thefts = sys.argv[1:]
with open(name, "a") as starts:
    starts.write("s")
    count = starts.tell()
if thefts == "ends":
    sys.exit("ended by itself")
if count <= int(thefts):
    port = socket.create_server(("127.0.0.1", json.load(open(file))["shell_port"]))
    subprocess.Popen(["sleep", "600"], start_new_session=True, pass_fds=[port.fileno()])
sys.argv = ["ipykernel_launcher", "-f", file]
runpy.run_module("ipykernel_launcher", run_name="__main__")
`;

/** Directory in which set-up has installed Calysto Scheme, a third-party kernel. */
const SCHEME = process.env["COPPICE_SCHEME_KERNEL"];

describe("kernels that are installed in the sandbox", { timeout: 240_000 }, () => {
  let own: CodeServer;
  let sandbox: CodeSandbox;

  before(async () => {
    own = await startCodeServer({
      startTimeout: "15s",
      interruptGrace: "5s",
      heartbeat: { interval: "300ms", maxMisses: 5 },
    });
    sandbox = await own.create({ GIVEN: "to the sandbox" });
    await install("foreign", {
      argv: LAUNCH,
      language: "Klingon",
      display_name: "Foreign",
      env: { OF_SPEC: "1" },
    });
    await install("by-message", { argv: LAUNCH, language: "spoken", interrupt_mode: "message" });
    await install("broken", { argv: ["/does/not/exist", "{connection_file}"], language: "broken" });
    await install("nonsense", { argv: [] });
    // Our own kernel of that name takes precedence.
    await install("python3", { argv: ["false"], language: "python" });
    await install("bash", { argv: ["false"], language: "bash" });
  });
  after(() => own[Symbol.asyncDispose]());

  async function install(name: string, spec: object): Promise<void> {
    const path = `/home/user/.local/share/jupyter/kernels/${name}/kernel.json`;
    await sandbox.live.runtime.files.write(
      path,
      (async function* () {
        yield Buffer.from(JSON.stringify(spec));
      })(),
    );
  }

  it("run code by the name of their language or their own, whatever its case, and keep its state", async () => {
    const first = await sandbox.run("import os\nx = 41\n(os.environ['OF_SPEC'], os.environ['GIVEN'])", {
      language: " KLINGON ",
    });
    assert.equal(first.results[0]?.["text"], "('1', 'to the sandbox')");
    const second = await sandbox.run("print('out')\nx + 1", { language: "klingon" });
    assert.equal(second.text("stdout"), "out\n");
    assert.equal(second.results[0]?.["text"], "42");
    assert.equal((await sandbox.run("1/0", { language: "klingon" })).error?.["name"], "ZeroDivisionError");
    const response = await sandbox.fetch("/contexts", {
      method: "POST",
      body: JSON.stringify({ language: "Foreign", cwd: "/home" }),
    });
    const context = (await response.json()) as { readonly id: string; readonly language: string };
    assert.equal(context.language, "foreign");
    const there = await sandbox.run("import os; ('x' in globals(), os.getcwd()[-5:])", {
      context_id: context.id,
    });
    assert.equal(there.results[0]?.["text"], "(False, '/home')");
    await sandbox.fetch(`/contexts/${context.id}/restart`, { method: "POST" });
    const again = await sandbox.run("import os; os.getcwd()[-5:]", { context_id: context.id });
    assert.equal(again.results[0]?.["text"], "/home");
    assert.equal((await sandbox.fetch(`/contexts/${context.id}`, { method: "DELETE" })).status, 200);
  });

  for (const [language, mode] of [
    ["foreign", "signals"],
    ["by-message", "messages"],
  ] as const) {
    it(`are interrupted by ${mode} when their client leaves, and serve the next one with their state`, async () => {
      await sandbox.run("kept = 7", { language });
      const client = new AbortController();
      const response = await sandbox.fetch("/execute", {
        method: "POST",
        body: JSON.stringify({ code: "print('begun', flush=True)\nwhile True: pass", language }),
        signal: client.signal,
      });
      assert.ok(response.body);
      let text = "";
      await assert.rejects(async () => {
        for await (const piece of response.body ?? []) {
          text += Buffer.from(piece).toString();
          if (text.includes("begun")) client.abort();
        }
      });
      const { results } = await sandbox.run("kept", { language });
      assert.equal(results[0]?.["text"], "7");
    });
  }

  it("without a heartbeat are ended, but not while code runs in them: some have one thread for both", async () => {
    const language = "foreign";
    const goingOn = [
      "import os, signal, subprocess, time",
      // Stopped at once, the kernel might not have reported yet that it is busy.
      "print(flush=True); time.sleep(0.5)",
      "subprocess.Popen(['sh', '-c', f'sleep 3; kill -CONT {os.getpid()}'])",
      "os.kill(os.getpid(), signal.SIGSTOP)",
      "os.getpid()",
    ];
    const { error, results } = await sandbox.run(goingOn.join("\n"), { language });
    assert.equal(error, undefined);
    process.kill(Number(results[0]?.["text"]), "SIGSTOP");
    assert.equal((await sandbox.run("1", { language })).error?.["name"], "ContextRestarting");
    assert.equal((await sandbox.run("1", { language })).lines[0]?.["execution_count"], 1);
  });

  it("are listed for Jupyter's clients, and started by them", async () => {
    const jupyter = `${own.server.url}/sandboxes/${sandbox.live.record.id}/jupyter/api`;
    const { kernelspecs } = (await (await fetch(`${jupyter}/kernelspecs`)).json()) as {
      readonly kernelspecs: Readonly<Record<string, { readonly spec: { readonly display_name: string } }>>;
    };
    assert.deepEqual(Object.keys(kernelspecs), [
      "python3",
      "javascript",
      "typescript",
      "bash",
      "broken",
      "by-message",
      "foreign",
    ]);
    assert.equal(kernelspecs["foreign"]?.spec.display_name, "Foreign");
    assert.equal((await fetch(`${jupyter}/kernelspecs/foreign`)).status, 200);
    assert.equal((await fetch(`${jupyter}/kernelspecs/nonsense`)).status, 404);
    const started = await fetch(`${jupyter}/kernels`, { method: "POST", body: '{"name": "foreign"}' });
    assert.equal(started.status, 201);
    assert.equal(((await started.json()) as { readonly name: string }).name, "foreign");
  });

  it("that abort requests after an error get them again", async () => {
    await install("aborting", {
      argv: [PYTHON, "-c", ABORTING, "-f", "{connection_file}"],
      language: "aborting",
    });
    const language = "aborting";
    assert.equal((await sandbox.run("fail", { language })).error?.["name"], "Failed");
    const next = await sandbox.run("next", { language });
    assert.deepEqual([next.error, next.text("stdout")], [undefined, "next"]);
    assert.equal((await sandbox.run("never", { language })).error?.["name"], "ExecutionAborted");
  });

  it(
    "of another language run it, keep its state, tell its errors and are interrupted",
    { skip: SCHEME === undefined && "the Scheme kernel is not installed (npm test installs it from PyPI)" },
    async () => {
      const env = { PYTHONPATH: SCHEME ?? "" };
      await install("calysto_scheme", {
        argv: [PYTHON, "-m", "calysto_scheme", "-f", "{connection_file}"],
        language: "scheme",
        env,
      });
      const run = (code: string) => sandbox.run(code, { language: "scheme" });
      assert.equal((await run("(define x 41)")).error, undefined);
      assert.equal((await run("(+ x 1)")).results[0]?.["text"], "42");
      assert.equal((await run('(display "shown")')).text("stdout"), "shown");
      const { error } = await run("(car 1)");
      assert.deepEqual([error?.["name"], error?.["value"]], ["RunTimeError", "car called on non-pair 1"]);
      const client = new AbortController();
      const endless = await sandbox.fetch("/execute", {
        method: "POST",
        body: JSON.stringify({
          code: '(begin (display "begun") (letrec ((loop (lambda () (loop)))) (loop)))',
          language: "scheme",
        }),
        signal: client.signal,
      });
      await assert.rejects(async () => {
        let text = "";
        for await (const piece of endless.body ?? []) {
          text += Buffer.from(piece).toString();
          if (text.includes("begun")) client.abort();
        }
      });
      assert.equal((await run("x")).results[0]?.["text"], "41");
    },
  );

  it("are started a second time when another process took a port, and for no other reason", async () => {
    const start = async (name: string, thefts: string): Promise<{ starts: number; result: unknown }> => {
      const argv = [PYTHON, "-c", ROBBED, "{connection_file}", name, thefts];
      await install(name, { argv, language: name });
      const { body, error, results } = await sandbox.run("6 * 7", { language: name });
      const { sizeBytes: starts } = await sandbox.live.runtime.files.stat(`/home/user/${name}`);
      return { starts, result: results[0]?.["text"] ?? error?.["value"] ?? body };
    };
    assert.deepEqual(await start("robbed-once", "1"), { starts: 2, result: "42" });
    const { starts, result } = await start("robbed-always", "9");
    assert.equal(starts, 2);
    assert.match(String(result), /^Failed to create context: the kernel ended while it started: .*in use/);
    assert.deepEqual(await start("not-robbed", "ends"), {
      starts: 1,
      result: "Failed to create context: the kernel ended while it started: ended by itself",
    });
  });

  for (const [language, show] of [
    ["R", "Sys.getenv"],
    ["java", "System.getProperty"],
  ] as const) {
    it(`for ${language} have the variables of their sandbox, and those of a call for its code alone`, async () => {
      const argv = [PYTHON, "-c", SPEAKING, "-f", "{connection_file}"];
      await install(`speaking-${language}`, { argv, language });
      const shown = async (name: string, variables?: object): Promise<unknown> => {
        const code = `${show}(${JSON.stringify(name)})`;
        const { results } = await sandbox.run(code, {
          language: language.toLowerCase(),
          env_vars: variables,
        });
        return results[0]?.["text"];
      };
      assert.equal(await shown("GIVEN"), "to the sandbox");
      assert.equal(await shown("GIVEN", { GIVEN: "to the call" }), "to the call");
      assert.equal(await shown("GIVEN"), "to the sandbox");
      const value = 'a"); "\\u0022 \\" \n\t\u0001 é 😀';
      assert.equal(await shown("a name", { "a name": value, "ANOTHER": "" }), value);
      assert.equal(await shown("a name"), "none");
    });
  }

  it("for Java send the end of a line apart, as E2B's do", async () => {
    const printed = async (text: string, language: string): Promise<unknown> => {
      const { lines } = await sandbox.run(`print(${JSON.stringify(text)})`, { language });
      return lines.filter(({ type }) => type === "stdout").map((line) => line["text"]);
    };
    assert.deepEqual(await printed("Hello, World!\n", "java"), ["Hello, World!", "\n"]);
    assert.deepEqual(await printed("\n", "java"), ["\n"]);
    for (const text of ["a\\n", "a", '"\\\\']) assert.deepEqual(await printed(text, "java"), [text]);
    assert.deepEqual(await printed("a\\\n", "java"), ["a\\", "\n"]);
    assert.deepEqual(await printed("Hello, World!\n", "r"), ["Hello, World!\n"]);
  });

  it("of other languages take no variables with their code, and say so", async () => {
    const { error } = await sandbox.run("1", { language: "foreign", env_vars: { A: "b" } });
    assert.equal(error?.["name"], "NotSupported");
    assert.match(String(error?.["value"]), /foreign/);
  });

  it("that cannot be used cause a clear error", async () => {
    const broken = await sandbox.run("1", { language: "broken" });
    assert.equal(broken.status, 500);
    assert.match(broken.body, /^Failed to create context: the kernel ended while it started/);
    for (const language of ["nonsense", "julia", "perl", "../kernels/foreign"]) {
      const { status, body } = await sandbox.run("1", { language });
      assert.equal(status, 500, language);
      const { message, short_message: short } = JSON.parse(
        body.replace(/^Failed to create context: /, ""),
      ) as Record<string, string>;
      assert.equal(short, `${language} not found`);
      assert.match(
        message ?? "",
        /is not available\. Available languages: python, javascript, typescript, bash, .*foreign/,
      );
    }
    await using hasty = await startCodeServer({ startTimeout: "500ms" });
    const other = await hasty.create();
    sandbox = other;
    await install("endless", { argv: ["sleep", "1000"], language: "endless" });
    const { status, body } = await other.run("1", { language: "endless" });
    assert.deepEqual(
      [status, body],
      [500, "Failed to create context: the kernel was not ready within 500 ms"],
    );
  });
});
