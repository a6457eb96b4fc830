import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { startCodeServer, type CodeSandbox, type CodeServer } from "../testing/code-server.js";
import { JupyterSocket, type JsonMessage } from "../testing/jupyter-socket.js";

interface Answer {
  readonly success: boolean;
  readonly message?: string;
  // Tests look into it as they please.
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  readonly body: any;
}

/** Sends the debugger's requests as JupyterLab does. */
class Debugging {
  readonly socket: JupyterSocket;
  #seq = 0;

  constructor(socket: JupyterSocket) {
    this.socket = socket;
  }

  async ask(command: string, given: object = {}): Promise<Answer> {
    const content = { type: "request", seq: ++this.#seq, command, arguments: given };
    const reply = await this.socket.end(this.socket.send("debug_request", content, { channel: "control" }));
    assert.equal(reply.header.msg_type, "debug_reply");
    return reply.content as unknown as Answer;
  }

  event(name: string): Promise<JsonMessage> {
    const is = ({ header, content }: JsonMessage): boolean =>
      header.msg_type === "debug_event" && content["event"] === name;
    return this.socket.find(name, is);
  }
}

describe("the debugger of a kernel", { timeout: 120_000 }, () => {
  let own: CodeServer;
  let sandbox: CodeSandbox;
  let without: CodeSandbox;
  before(async () => {
    own = await startCodeServer();
    sandbox = await own.create();
    without = await own.create({ PYTHONPATH: "hiding" });
  });
  after(() => own[Symbol.asyncDispose]());

  async function open(language: string, where = sandbox): Promise<JupyterSocket> {
    const response = await where.fetch("/contexts", { method: "POST", body: JSON.stringify({ language }) });
    const { id } = (await response.json()) as { readonly id: string };
    const root = `${own.server.url.replace(/^http/, "ws")}/sandboxes/${where.live.record.id}/jupyter`;
    return JupyterSocket.open(`${root}/api/kernels/${id}/channels`);
  }

  async function infoOf(socket: JupyterSocket): Promise<Readonly<Record<string, unknown>>> {
    return (await socket.end(socket.send("kernel_info_request", {}))).content;
  }

  it("is loaded by its first request, stops at a breakpoint, shows variables and goes on", async () => {
    using socket = await open("python");
    const debug = new Debugging(socket);
    assert.equal((await infoOf(socket))["debugger"], true);
    const isLoaded = async (): Promise<string> => {
      const id = socket.execute(
        "import sys; print('debugpy' in sys.modules, '_pydevd_bundle' in sys.modules)",
      );
      await socket.end(id);
      return socket.textOf(id);
    };
    assert.equal(await isLoaded(), "False False\n");

    const info = await debug.ask("debugInfo");
    assert.deepEqual([info.success, info.body.isStarted, info.body.breakpoints], [true, false, []]);
    assert.equal(await isLoaded(), "True True\n");
    const initialize = { clientID: "test", adapterID: "", linesStartAt1: true, columnsStartAt1: true };
    assert.equal((await debug.ask("initialize", { ...initialize, pathFormat: "path" })).success, true);
    assert.equal((await debug.ask("attach", {})).success, true);
    assert.equal((await debug.ask("debugInfo")).body.isStarted, true);

    const code = "def double(number):\n    result = 2 * number\n    return result\nprint(double(21))";
    const { sourcePath } = (await debug.ask("dumpCell", { code })).body;
    const breakpoints = [{ line: 3 }];
    const set = await debug.ask("setBreakpoints", { breakpoints, source: { path: sourcePath } });
    assert.equal(set.body.breakpoints[0].verified, true);
    assert.equal((await debug.ask("configurationDone")).success, true);

    const cell = socket.execute(code);
    const { content } = await debug.event("stopped");
    const { threadId } = content["body"] as { readonly threadId: number };
    const { stackFrames } = (await debug.ask("stackTrace", { threadId })).body;
    assert.deepEqual([stackFrames[0].name, stackFrames[0].line], ["double", 3]);
    const { scopes } = (await debug.ask("scopes", { frameId: stackFrames[0].id })).body;
    const { variablesReference } = scopes[0];
    const { variables } = (await debug.ask("variables", { variablesReference })).body;
    assert.equal(variables.find(({ name }: { name: string }) => name === "result").value, "42");
    assert.equal(socket.textOf(cell), "");
    assert.equal((await debug.ask("continue", { threadId })).success, true);
    assert.equal((await socket.end(cell)).content["status"], "ok");
    assert.equal(socket.textOf(cell), "42\n");
    assert.equal((await debug.ask("disconnect", { restart: false, terminateDebuggee: false })).success, true);
  });

  it("is reported as absent without debugpy, and by kernels without a debugger", async () => {
    using bash = await open("bash");
    assert.notEqual((await infoOf(bash))["debugger"], true);
    const hiding = [
      "import sys",
      "class Hiding:",
      "    def find_spec(self, name, path=None, target=None):",
      "        if name == 'debugpy': raise ImportError(name)",
      "sys.meta_path.insert(0, Hiding())",
    ];
    const write = `import os; os.makedirs('hiding')\nfile = open('hiding/sitecustomize.py', 'w')\n`;
    await without.run(`${write}_ = file.write(${JSON.stringify(hiding.join("\n"))})\nfile.close()`);
    using python = await open("python", without);
    assert.equal((await infoOf(python))["debugger"], false);
    const answer = await new Debugging(python).ask("debugInfo");
    assert.deepEqual([answer.success, answer.message], [false, "debugpy cannot be imported"]);
  });
});
