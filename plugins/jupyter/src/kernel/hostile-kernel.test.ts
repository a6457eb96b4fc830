import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { startCodeServer, type CodeSandbox, type CodeServer } from "../testing/code-server.js";

/** Defines `forged`: malformed variants of a message, signed with the kernel's key. */
const FORGING = `
import random, os
kernel = get_ipython().kernel
session = kernel.session
chance = random.Random(5)
parent = kernel.get_parent("shell")
stranger = {"header": {**parent["header"], "msg_id": "somebody-else", "session": "somebody"}}
def forged(round, type, parent, idents):
    kind = round % 9
    content = {"name": "stdout", "text": "forged", "status": "ok", "prompt": "forged"}
    message = session.msg(type, content, parent=stranger if kind in (1, 2) else parent)
    frames = session.serialize(message, ident=idents)[len(idents):]
    sign = lambda: frames.__setitem__(1, session.sign(frames[2:6]))
    if kind == 0: frames[1] = b"0" * 64
    elif kind == 1: pass
    elif kind == 2: frames[3] = b'{"msg_id": ' + b'"' + os.urandom(8).hex().encode() + b'"}'; sign()
    elif kind == 3: frames = frames[: chance.randrange(1, 6)]
    elif kind == 4: frames[2 + chance.randrange(2)] = chance.randbytes(40); sign()
    elif kind == 5: frames[5] = b'{"name": "stdout", "text": "forged"' + chance.randbytes(9); sign()
    elif kind == 6: frames[5] = b'{"name": "stdout", "text": "x"}\\n{"type": "forged"}'; sign()
    elif kind == 7: frames = [chance.randbytes(chance.randrange(200)) for _ in range(chance.randrange(1, 9))]
    elif round % 36 == 8: frames[5] = b'{"name": "stdout", "text": "' + b"forged" * 200_000; sign()
    else: frames[2] = b'{"msg_id": 1, "msg_type": [], "__proto__": {"msg_type": "stream"}}'; sign()
    return [*idents, *frames]
`;

/** A cell that sends it on iopub. */
const HOSTILE = `${FORGING}
for round in range(400):
    kernel.iopub_thread.send_multipart(forged(round, "stream", parent, [b"x"]))
print("done")
`;

/** A cell after which forged messages precede and follow every answer, on every channel. */
const HOSTILE_ANSWERS = `${FORGING}
send, rounds = session.send, iter(range(10**9))
types = ["execute_reply", "kernel_info_reply", "cancel_reply", "input_request", "interrupt_reply", "shutdown_reply"]
cell = parent
def send_more(stream, msg_or_type, content=None, parent=None, ident=None, **options):
    idents = ident if isinstance(ident, list) else [ident]
    def send_forged():
        if ident is None: return
        for round in rounds:
            stream.send_multipart(forged(round, types[round % 6], parent or cell, idents))
            if round % 9 == 8: return
    send_forged()
    sent = send(stream, msg_or_type, content, parent, ident, **options)
    send_forged()
    return sent
session.send = send_more
`;

/** A cell that sends a larger message than our kernels ever send. */
const LARGE = `
kernel = get_ipython().kernel
kept = 1
content = {"name": "stdout", "text": "x" * 8_000_000}
message = kernel.session.msg("stream", content, parent=kernel.get_parent("shell"))
kernel.iopub_thread.send_multipart(kernel.session.serialize(message, ident=[b"x"]))
import time; time.sleep(60)
`;

/** A cell that writes the beginning of a message to the server's connections by itself, and never its end. */
const ENDLESS = `
import os, socket, struct
from ipykernel.kernelapp import IPKernelApp
ports = {port for name, port in IPKernelApp.instance()._ports.items() if name != "hb"}
size = 3_900_000
for name in os.listdir("/proc/self/fd"):
    try: connection = socket.socket(fileno=os.dup(int(name)))
    except OSError: continue
    try: connection.getpeername()
    except OSError: continue
    if connection.family != socket.AF_INET or connection.getsockname()[1] not in ports: continue
    connection.setblocking(True)
    connection.sendall(b"\\x02" + struct.pack(">Q", size) + bytes(size - 100_000))
    connection.setblocking(False)
`;

for (const transport of ["zeromq", "zmtp"]) {
  describe(`a hostile kernel over ${transport}`, () => {
    let own: CodeServer;
    let sandbox: CodeSandbox;

    before(async () => {
      own = await startCodeServer({ transport });
      sandbox = await own.create();
    });

    after(() => own[Symbol.asyncDispose]());

    it("hostile messages neither break their own execution's end nor reach another", async () => {
      const made = await sandbox.fetch("/contexts", { method: "POST", body: "{}" });
      const { id } = (await made.json()) as { id: string };
      const bystander = sandbox.run(
        "import time\nfor step in range(10):\n    print(step, flush=True)\n    time.sleep(0.1)",
        { context_id: id },
      );
      const hostile = await sandbox.run(HOSTILE);
      assert.equal(hostile.error, undefined);
      assert.equal(hostile.text("stdout"), "done\n");
      assert.equal((await bystander).text("stdout"), "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
      for (const more of [{}, { context_id: id }]) {
        const next = await sandbox.run("print('next')", more);
        assert.deepEqual([next.error, next.text("stdout")], [undefined, "next\n"]);
      }
    });

    it("hostile messages around answers do not break executions' ends, also of aborted ones", async () => {
      const made = await sandbox.fetch("/contexts", { method: "POST", body: "{}" });
      const { id } = (await made.json()) as { id: string };
      const own = { context_id: id };
      assert.equal((await sandbox.run(HOSTILE_ANSWERS, own)).error, undefined);
      for (let round = 0; round < 3; round++) {
        const client = new AbortController();
        const given = await sandbox.fetch("/execute", {
          method: "POST",
          body: JSON.stringify({ code: "print('begun', flush=True)\nwhile True: pass", ...own }),
          signal: client.signal,
        });
        await assert.rejects(async () => {
          for await (const piece of given.body ?? [])
            if (Buffer.from(piece).includes("begun")) client.abort();
        });
        for (const [more, text] of [
          [own, `own ${round}\n`],
          [{}, `other ${round}\n`],
        ] as const) {
          const next = await sandbox.run(`print(${JSON.stringify(text.trim())})`, more);
          assert.deepEqual([next.error, next.text("stdout"), next.text("stderr")], [undefined, text, ""]);
        }
      }
      await sandbox.fetch(`/contexts/${id}`, { method: "DELETE" });
    });

    it("a message larger than the limit ends its kernel, and the context goes on with another", async () => {
      await using small = await startCodeServer({ transport, maxMessage: "4MiB" });
      const other = await small.create();
      const ended = await other.run(LARGE);
      assert.equal(ended.error?.["name"], "UnexpectedEndOfExecution");
      assert.equal((await other.run("print('kept' in globals())")).text("stdout"), "False\n");
    });
  });
}

it("kernels that begin messages without end are ended where they hold the most, and no other sandbox's", async () => {
  // Room for the beginnings of two kernels.
  await using server = await startCodeServer({
    transport: "zmtp",
    maxMessage: "4MiB",
    maxHeldMessages: "40MiB",
    interruptGrace: "1s",
  });
  const [hostile, bystander] = [await server.create(), await server.create()];
  assert.equal((await bystander.run("kept = 1")).error, undefined);
  const contexts = await Promise.all(
    [1, 2, 3, 4].map(async () => {
      const made = await hostile.fetch("/contexts", { method: "POST", body: "{}" });
      return ((await made.json()) as { id: string }).id;
    }),
  );
  const ended: unknown[] = [];
  const { promise: twoEnded, resolve } = Promise.withResolvers<void>();
  const running = contexts.map(async (id) => {
    // Those that are not ended leave with their sandbox.
    const { error } = await hostile.run(ENDLESS, { context_id: id }).catch(() => ({ error: undefined }));
    if (ended.push(error?.["name"]) === 2) resolve();
  });
  await twoEnded;
  const { error, text } = await bystander.run("print('x' * 3_000_000, kept)");
  assert.deepEqual([error, text("stdout").length], [undefined, 3_000_003]);
  assert.deepEqual(ended, ["UnexpectedEndOfExecution", "UnexpectedEndOfExecution"]);
  await server.server.sandboxes.kill(hostile.live.record.id);
  await Promise.all(running);
});
