import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { after, before, it } from "node:test";
import type { LiveSandbox } from "@coppice/core";
import { eventually, type TestServer } from "@coppice/core/testing";
import { KernelSpecAPI, type Kernel, type KernelMessage } from "@jupyterlab/services";
import { jupyterClient, type Framing, type JupyterClient } from "../../harness/clients/jupyter-client.js";

export interface JupyterPlace {
  readonly server: TestServer;
  readonly sandbox: LiveSandbox;
}

type Options = Partial<KernelMessage.IExecuteRequestMsg["content"]>;

interface Ran {
  readonly reply: KernelMessage.IExecuteReplyMsg;
  /** Its iopub messages, in order. */
  readonly messages: readonly KernelMessage.IIOPubMessage[];
  readonly stdout: string;
  readonly types: readonly string[];
}

/** Runs a cell to its end. */
async function run(kernel: Kernel.IKernelConnection, code: string, options: Options = {}): Promise<Ran> {
  const future = kernel.requestExecute({ code, ...options });
  const messages: KernelMessage.IIOPubMessage[] = [];
  future.onIOPub = (message) => void messages.push(message);
  const reply = await future.done;
  const stdout = messages
    .filter((message) => message.header.msg_type === "stream")
    .map((message) => (message as KernelMessage.IStreamMsg).content)
    .filter(({ name }) => name === "stdout")
    .map(({ text }) => text)
    .join("");
  return { reply, messages, stdout, types: messages.map(({ header }) => header.msg_type) };
}

function textOf({ messages }: Ran): unknown {
  const result = messages.find(({ header }) => header.msg_type === "execute_result");
  return (result as KernelMessage.IExecuteResultMsg | undefined)?.content.data["text/plain"];
}

/** Resolves when the kernel changes to that status. */
function statusComes(kernel: Kernel.IKernelConnection, wanted: Kernel.Status): Promise<void> {
  return new Promise((resolve) => {
    const look = (_sender: unknown, status: Kernel.Status): void => {
      if (status !== wanted) return;
      kernel.statusChanged.disconnect(look);
      resolve();
    };
    kernel.statusChanged.connect(look);
  });
}

/** Cases for JupyterLab's client with a sandbox's kernels, in one framing. */
export function jupyterScenarios(framing: Framing, placeOf: () => JupyterPlace): void {
  let place: JupyterPlace;
  let client: JupyterClient;
  let kernel: Kernel.IKernelConnection;

  before(async () => {
    place = placeOf();
    client = jupyterClient({ ...place, framing });
    kernel = await client.kernels.startNew({ name: "python3" });
    await kernel.info;
  });
  after(() => client[Symbol.dispose]());

  it("lists the kernels that can be started", async () => {
    const specs = await KernelSpecAPI.getSpecs(client.settings);
    assert.equal(specs.default, "python3");
    assert.equal(specs.kernelspecs["python3"]?.language, "python");
  });

  it("speaks the framing that was asked for", async () => {
    assert.equal(client.sockets.at(-1)?.protocol, framing === "v1" ? "v1.kernel.websocket.jupyter.org" : "");
    const info = await kernel.info;
    assert.equal(info.implementation, "ipython");
    assert.equal(info.status, "ok");
  });

  it("delivers the messages of a cell in the order of Jupyter's protocol", async () => {
    const ran = await run(kernel, "print('hi'); 1+1");
    assert.deepEqual(ran.types, ["status", "execute_input", "stream", "execute_result", "status"]);
    assert.equal(ran.stdout, "hi\n");
    assert.equal(textOf(ran), "2");
    assert.equal(ran.reply.content.status, "ok");
  });

  it("keeps the order of many small outputs", async () => {
    const ran = await run(kernel, "for i in range(2000): print(i, flush=True)");
    assert.equal(ran.stdout, Array.from({ length: 2000 }, (_, index) => `${index}\n`).join(""));
  });

  it("answers cells in the order in which they were sent", async () => {
    const ended: number[] = [];
    await Promise.all(
      Array.from({ length: 20 }, (_, index) => run(kernel, `${index}`).then(() => ended.push(index))),
    );
    assert.deepEqual(
      ended,
      Array.from({ length: 20 }, (_, index) => index),
    );
  });

  it("reports an error with its traceback, and the next cell runs", async () => {
    const { reply, types } = await run(kernel, "1/0");
    assert.equal(reply.content.status, "error");
    assert.equal((reply.content as KernelMessage.IReplyErrorContent).ename, "ZeroDivisionError");
    assert.ok(types.includes("error"));
    assert.equal(textOf(await run(kernel, "'next'")), "'next'");
  });

  it("asks its client for input", async () => {
    const future = kernel.requestExecute({ code: "input('name? ')", allow_stdin: true });
    let prompt = "";
    let result: unknown;
    future.onStdin = (message) => {
      if (message.header.msg_type !== "input_request") return;
      prompt = (message as KernelMessage.IInputRequestMsg).content.prompt;
      kernel.sendInputReply({ status: "ok", value: "né😀" }, message.header as never);
    };
    future.onIOPub = (message) => {
      if (message.header.msg_type !== "execute_result") return;
      result = (message as KernelMessage.IExecuteResultMsg).content.data["text/plain"];
    };
    await future.done;
    assert.equal(prompt, "name? ");
    assert.equal(result, "'né😀'");
  });

  it("refuses input where the client allows none", async () => {
    const { reply } = await run(kernel, "input()", { allow_stdin: false });
    assert.equal((reply.content as KernelMessage.IReplyErrorContent).ename, "StdinNotImplementedError");
  });

  it("updates what is displayed", async () => {
    const { messages } = await run(
      kernel,
      "from IPython.display import display\nshown = display('one', display_id='d1')\nshown.update('two')",
    );
    const shown = messages.filter(({ header }) => header.msg_type.endsWith("display_data"));
    assert.deepEqual(
      shown.map(({ header }) => header.msg_type),
      ["display_data", "update_display_data"],
    );
    for (const message of shown)
      assert.equal((message as KernelMessage.IDisplayDataMsg).content.transient?.["display_id"], "d1");
  });

  it("clears output when told to", async () => {
    const { types } = await run(
      kernel,
      "from IPython.display import clear_output\nprint(1)\nclear_output(wait=True)",
    );
    assert.ok(types.includes("clear_output"));
  });

  it("carries comm messages with buffers both ways", { timeout: 60_000 }, async () => {
    await run(
      kernel,
      [
        "def opened(comm, message):",
        "    @comm.on_msg",
        "    def _(message):",
        "        data = [bytes(b) for b in message['buffers']]",
        "        comm.send({'sizes': [len(d) for d in data], 'x': message['content']['data']['x']}, buffers=[d[::-1] for d in data])",
        "try:\n    import comm as c\n    manager = c.get_comm_manager()",
        "except ImportError:\n    manager = get_ipython().kernel.comm_manager",
        "manager.register_target('echo', opened)",
      ].join("\n"),
    );
    const large = randomBytes(64 * 1024);
    const comm = kernel.createComm("echo");
    const { promise, resolve } = Promise.withResolvers<KernelMessage.ICommMsgMsg>();
    comm.onMsg = (message) => resolve(message);
    await comm.open().done;
    comm.send({ x: 1.5 }, {}, [Uint8Array.of(1, 2, 3).buffer, new Uint8Array(large).buffer]);
    const { content, buffers = [] } = await promise;
    assert.deepEqual(content.data, { sizes: [3, large.length], x: 1.5 });
    const bytes = buffers.map((buffer) =>
      ArrayBuffer.isView(buffer)
        ? Buffer.from(buffer.buffer, buffer.byteOffset, buffer.byteLength)
        : Buffer.from(buffer),
    );
    assert.deepEqual([...(bytes[0] ?? [])], [3, 2, 1]);
    assert.ok(bytes[1]?.equals(Buffer.from(large).reverse()));
    await comm.close().done;
  });

  it("tells which comms are open", async () => {
    const comm = kernel.createComm("echo");
    await comm.open().done;
    // It may have come by a subshell, which has an order of its own.
    await eventually("the comm in the list", async () => {
      const { content } = await kernel.requestCommInfo({ target_name: "echo" });
      return content.status === "ok" && Object.hasOwn(content.comms, comm.commId);
    });
  });

  it("streams three megabytes whole", async () => {
    const { stdout } = await run(kernel, "print('xé' * 1_500_000)");
    assert.equal(stdout.length, 3_000_001);
  });

  it("completes, inspects and says whether code is complete", async () => {
    await run(kernel, "value_for_completion = 1");
    const completion = await kernel.requestComplete({ code: "value_for_com", cursor_pos: 13 });
    assert.ok((completion.content as { matches: string[] }).matches.includes("value_for_completion"));
    const inspection = await kernel.requestInspect({ code: "len", cursor_pos: 3, detail_level: 0 });
    assert.match(JSON.stringify(inspection.content), /Return the number of items/);
    const whole = await kernel.requestIsComplete({ code: "1" });
    const part = await kernel.requestIsComplete({ code: "for i in range(2):" });
    assert.equal(whole.content.status, "complete");
    assert.equal(part.content.status, "incomplete");
  });

  it("answers for its history", async () => {
    const { content } = await kernel.requestHistory({
      hist_access_type: "tail",
      n: 3,
      output: false,
      raw: true,
    });
    assert.equal(content.status, "ok");
    assert.ok(Array.isArray((content as { history: unknown }).history));
  });

  it("interrupts a cell and keeps its state", async () => {
    await run(kernel, "kept = 42");
    const future = kernel.requestExecute({ code: "print('on', flush=True)\nwhile True: pass" });
    // A kernel ignores an interrupt between saying that it is busy and the start of the cell.
    await new Promise<void>((resolve) => {
      future.onIOPub = ({ header }) => {
        if (header.msg_type === "stream") resolve();
      };
    });
    await kernel.interrupt();
    const { content } = await future.done;
    assert.equal((content as KernelMessage.IReplyErrorContent).ename, "KeyboardInterrupt");
    assert.equal(textOf(await run(kernel, "kept")), "42");
  });

  it("shares its kernel with a second client, which sees what the first one does", async () => {
    using other = jupyterClient({ ...place, framing });
    const second = other.kernels.connectTo({ model: kernel.model });
    await second.info;
    const seen: string[] = [];
    second.iopubMessage.connect((_sender, message) => {
      if (message.header.msg_type === "stream") seen.push((message as KernelMessage.IStreamMsg).content.text);
    });
    assert.equal(textOf(await run(second, "kept")), "42");
    await run(kernel, "print('to both')");
    await eventually("the other client's output", async () => seen.join("") === "to both\n");
    second.dispose();
  });

  it("asks only the client whose cell wants input", async () => {
    using other = jupyterClient({ ...place, framing });
    const second = other.kernels.connectTo({ model: kernel.model });
    await second.info;
    let strays = 0;
    second.anyMessage.connect((_sender, { msg, direction }) => {
      if (direction === "recv" && msg.channel === "stdin") strays++;
    });
    const future = kernel.requestExecute({ code: "input()", allow_stdin: true });
    const asked = Promise.withResolvers<KernelMessage.IStdinMessage>();
    future.onStdin = (message) => asked.resolve(message);
    const request = await asked.promise;
    // An input reply of a client that was not asked must not reach the kernel.
    second.sendInputReply({ status: "ok", value: "stolen" }, request.header as never);
    kernel.sendInputReply({ status: "ok", value: "mine" }, request.header as never);
    await future.done;
    assert.equal(textOf(await run(kernel, "_")), "'mine'");
    assert.equal(strays, 0);
    second.dispose();
  });

  it("replays what a client missed while its connection was lost", async () => {
    const future = kernel.requestExecute({
      code: "import time\nfor i in range(8): print(i, flush=True); time.sleep(0.15)",
    });
    let stdout = "";
    const { promise: begun, resolve: begin } = Promise.withResolvers<void>();
    future.onIOPub = (message) => {
      if (message.header.msg_type !== "stream") return;
      stdout += (message as KernelMessage.IStreamMsg).content.text;
      begin();
    };
    await begun;
    client.sockets.at(-1)?.terminate();
    await future.done;
    assert.equal(stdout, "0\n1\n2\n3\n4\n5\n6\n7\n");
    // Requests of JupyterLab after a reconnect: one that is still open at a restart would reject without a handler.
    await run(kernel, "1");
  });

  it("restarts: an empty namespace, the same id", async () => {
    const { id } = kernel;
    await kernel.restart();
    assert.equal(kernel.id, id);
    assert.equal(textOf(await run(kernel, "'kept' in globals()")), "False");
    assert.equal((await run(kernel, "1")).reply.content.execution_count, 2);
  });

  it("comes back by itself after a crash", async () => {
    const restarting = statusComes(kernel, "autorestarting");
    const crashed = kernel.requestExecute({ code: "import os; os._exit(1)" });
    await Promise.all([restarting, assert.rejects(crashed.done, /Canceled/)]);
    await eventually("a kernel that is connected again", async () => kernel.connectionStatus === "connected");
    assert.equal(textOf(await run(kernel, "'back'")), "'back'");
  });

  it("has the same kernels as the code interpreter's contexts", async () => {
    const response = await fetch(`${place.server.url}/contexts`, {
      headers: {
        "e2b-sandbox-id": place.sandbox.record.id,
        "e2b-sandbox-port": "49999",
        "x-access-token": place.sandbox.record.accessToken ?? "",
      },
    });
    const contexts = (await response.json()) as { id: string }[];
    assert.ok(contexts.some(({ id }) => id === kernel.id));
  });

  it("shows what /execute does in the kernel that they share", async () => {
    let shown = "";
    const look = (_sender: unknown, message: KernelMessage.IIOPubMessage): void => {
      if (message.header.msg_type === "stream") shown += (message as KernelMessage.IStreamMsg).content.text;
    };
    kernel.iopubMessage.connect(look);
    await run(kernel, "shared = 'from jupyter'");
    const response = await fetch(`${place.server.url}/execute`, {
      method: "POST",
      headers: {
        "content-type": "application/json",
        "e2b-sandbox-id": place.sandbox.record.id,
        "e2b-sandbox-port": "49999",
        "x-access-token": place.sandbox.record.accessToken ?? "",
      },
      body: JSON.stringify({ code: "print(shared)", context_id: kernel.id }),
    });
    assert.match(await response.text(), /"text": "from jupyter\\n"/);
    await eventually("the output at the Jupyter client", async () => shown === "from jupyter\n");
    kernel.iopubMessage.disconnect(look);
  });

  it("opens a session for a document, and closes it with its kernel", async () => {
    const session = await client.sessions.startNew({
      path: "work/notes.ipynb",
      name: "notes.ipynb",
      type: "notebook",
      kernel: { name: "python3" },
    });
    assert.ok(session.kernel);
    assert.equal(textOf(await run(session.kernel, "6*7")), "42");
    await session.setPath("work/renamed.ipynb");
    await client.sessions.refreshRunning();
    const running = [...client.sessions.running()];
    assert.deepEqual(
      running.map(({ path }) => path),
      ["work/renamed.ipynb"],
    );
    const kernelId = session.kernel.id;
    await session.shutdown();
    await client.sessions.refreshRunning();
    await client.kernels.refreshRunning();
    assert.deepEqual([...client.sessions.running()], []);
    assert.ok(![...client.kernels.running()].some(({ id }) => id === kernelId));
  });

  it("shuts down: the kernel is dead for every client and gone from the list", async () => {
    const doomed = await client.kernels.startNew({ name: "python3" });
    await doomed.info;
    using other = jupyterClient({ ...place, framing });
    const second = other.kernels.connectTo({ model: doomed.model });
    await second.info;
    const dead = statusComes(second, "dead");
    await client.kernels.shutdown(doomed.id);
    await dead;
    assert.ok(![...client.kernels.running()].some(({ id }) => id === doomed.id));
  });
}
