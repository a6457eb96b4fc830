import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { startCodeServer, type CodeSandbox, type CodeServer } from "./testing/code-server.js";

/** A cell that sends on its kernel's own sockets, with the right key, what no kernel would. */
const HOSTILE = `
import random, os
kernel = get_ipython().kernel
session, iopub = kernel.session, kernel.iopub_thread
chance = random.Random(5)
parent = kernel.get_parent("shell")
stranger = {"header": {**parent["header"], "msg_id": "somebody-else", "session": "somebody"}}
for round in range(400):
    kind = round % 9
    content = {"name": "stdout", "text": "forged"}
    message = session.msg("stream", content, parent=stranger if kind in (1, 2) else parent)
    frames = session.serialize(message, ident=b"x")
    sign = lambda: frames.__setitem__(2, session.sign(frames[3:7]))
    if kind == 0: frames[2] = b"0" * 64
    elif kind == 1: pass
    elif kind == 2: frames[4] = b'{"msg_id": ' + b'"' + os.urandom(8).hex().encode() + b'"}'; sign()
    elif kind == 3: frames = frames[: chance.randrange(1, 7)]
    elif kind == 4: frames[3 + chance.randrange(2)] = chance.randbytes(40); sign()
    elif kind == 5: frames[6] = b'{"name": "stdout", "text": "forged"' + chance.randbytes(9); sign()
    elif kind == 6: frames[6] = b'{"name": "stdout", "text": "x"}\\n{"type": "forged"}'; sign()
    elif kind == 7: frames = [chance.randbytes(chance.randrange(200)) for _ in range(chance.randrange(1, 9))]
    elif round % 36 == 8: frames[6] = b'{"name": "stdout", "text": "' + b"forged" * 500_000; sign()
    else: frames[3] = b'{"msg_id": 1, "msg_type": [], "__proto__": {"msg_type": "stream"}}'; sign()
    iopub.send_multipart(frames)
print("done")
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

    test("whatever a kernel sends, its own execution ends as it should, and no other one sees any of it", async () => {
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

    test("a message larger than the limit ends its kernel, and the context goes on with another", async () => {
      await using small = await startCodeServer({ transport, maxMessage: "4MiB" });
      const other = await small.create();
      const ended = await other.run(
        "from IPython.display import display\nkept = 1\ndisplay({'x/y': 'x' * 8_000_000}, raw=True)\nimport time; time.sleep(60)",
      );
      assert.equal(ended.error?.["name"], "UnexpectedEndOfExecution");
      assert.equal((await other.run("print('kept' in globals())")).text("stdout"), "False\n");
    });
  });
}
