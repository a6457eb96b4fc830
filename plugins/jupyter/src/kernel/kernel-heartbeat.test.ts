import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { startCodeServer, type CodeSandbox, type CodeServer } from "../testing/code-server.js";
import { JupyterSocket } from "../testing/jupyter-socket.js";

const HEARTBEAT = { interval: "300ms", maxMisses: 5 };
/** Longest time until a kernel without an answer is ended, in seconds, on an idle machine. */
const SILENT_S = 1.8;
/** Cells that stop the kernel. They end when no process of the kernel runs any more. */
const STOPPED: Readonly<Record<string, string>> = {
  python: "import os, signal, time; os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)",
  javascript: "process.kill(process.pid, 'SIGSTOP'); await new Promise((done) => setTimeout(done, 60_000))",
  bash: "kill -STOP $PPID; sleep 60",
};

async function metric(name: string, { server }: CodeServer): Promise<number> {
  const page = await (await fetch(`${server.urls["ops"]}/metrics`)).text();
  const line = page.split("\n").find((candidate) => candidate.startsWith(`coppice_jupyter_${name} `));
  return Number(line?.split(" ").at(-1) ?? Number.NaN);
}

async function contextOf(sandbox: CodeSandbox, body: object): Promise<string> {
  const made = await sandbox.fetch("/contexts", { method: "POST", body: JSON.stringify(body) });
  return ((await made.json()) as { id: string }).id;
}

for (const transport of ["zeromq", "zmtp"]) {
  describe(`a kernel without a heartbeat, over ${transport}`, () => {
    let own: CodeServer;
    let sandbox: CodeSandbox;

    before(async () => {
      own = await startCodeServer({ transport, heartbeat: HEARTBEAT });
      sandbox = await own.create({ GLOBAL: "kept" });
    });
    after(() => own[Symbol.asyncDispose]());

    it("is ended: executions end, the next kernel has directory and variables, others are unaffected", async () => {
      const context_id = await contextOf(sandbox, { cwd: "/tmp" });
      assert.equal((await sandbox.run("kept = 1")).error, undefined);
      const died = await sandbox.run(STOPPED["python"] ?? "", { context_id });
      assert.deepEqual(died.error, {
        type: "error",
        name: "ContextRestarting",
        value: "Context was restarted",
        traceback: "",
      });
      const next = await sandbox.run(
        "import os; (os.path.basename(os.getcwd()), os.environ['GLOBAL'], 'signal' in globals())",
        {
          context_id,
        },
      );
      assert.equal(next.lines[0]?.["execution_count"], 1);
      assert.equal(next.results[0]?.["text"], "('tmp', 'kept', False)");
      assert.equal((await sandbox.run("kept")).results[0]?.["text"], "1");
      assert.equal(await metric("silent_kernels_total", own), 1);
    });

    it("is shown as restarting to Jupyter's clients", async () => {
      const { id } = sandbox.live.record;
      const context = await contextOf(sandbox, {});
      const base = `${own.server.url}/sandboxes/${id}/jupyter/api/kernels/${context}`;
      using socket = await JupyterSocket.open(`${base.replace(/^http/, "ws")}/channels?session_id=s`);
      await socket.end(socket.execute("1"));
      socket.execute(STOPPED["python"] ?? "");
      await socket.find("its end", ({ content }) => content["execution_state"] === "restarting");
      assert.equal((await socket.end(socket.execute("1"))).content["execution_count"], 1);
      const model = (await (await fetch(base)).json()) as { execution_state: string };
      assert.equal(model.execution_state, "idle");
    });
  });
}

describe("the heartbeat of a kernel", () => {
  let own: CodeServer;
  let sandbox: CodeSandbox;

  before(async () => {
    own = await startCodeServer({ heartbeat: HEARTBEAT, zygote: { enabled: true, imports: [] } });
    sandbox = await own.create();
  });
  after(() => own[Symbol.asyncDispose]());

  for (const language of ["javascript", "bash"]) {
    it(`is missed in ${language} too`, async () => {
      assert.equal((await sandbox.run("true", { language })).error?.["name"], undefined);
      assert.equal(
        (await sandbox.run(STOPPED[language] ?? "", { language })).error?.["name"],
        "ContextRestarting",
      );
      assert.equal((await sandbox.run("true", { language })).error?.["name"], undefined);
    });
  }

  it("is missed where it was forked, and its siblings go on", async () => {
    assert.equal((await sandbox.run("kept = 1")).error, undefined);
    const endMs = performance.now() + 10_000;
    while ((await metric("zygotes", own)) !== 1 && performance.now() < endMs) await delay(20);
    const context_id = await contextOf(sandbox, {});
    assert.equal(
      (await sandbox.run(STOPPED["python"] ?? "", { context_id })).error?.["name"],
      "ContextRestarting",
    );
    assert.equal((await sandbox.run("1+1", { context_id })).results[0]?.["text"], "2");
    assert.equal((await sandbox.run("kept")).results[0]?.["text"], "1");
  });

  it("goes on while code holds the interpreter, for longer than a kernel may be silent", async () => {
    const ran = await sandbox.run(
      `kept = 2; import ctypes; ctypes.PyDLL(None).sleep(${Math.ceil(SILENT_S) + 1}); kept`,
    );
    assert.deepEqual([ran.error, ran.results[0]?.["text"]], [undefined, "2"]);
  });
});
