import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { endInit } from "./testing/end-init.js";
import { wholeLimits, openTestBackend, reasonToSkip } from "./testing/test-backend.js";
import { makeSandbox, runScript } from "./testing/test-sandbox.js";

const MEBIBYTE = 2 ** 20;

async function* mebibytes(count: number): AsyncGenerator<Uint8Array> {
  const one = Buffer.alloc(MEBIBYTE, 1);
  for (let each = 0; each < count; each += 1) yield one;
}

describe("the end of a sandbox's first process", { skip: reasonToSkip() ?? false, concurrency: 1 }, () => {
  it("for lack of memory is reported as that, and that of another process is not", async (context) => {
    // No process can be killed to free files in memory: in the end only the first one is left.
    await using opened = await openTestBackend({ layers: "memory" });
    if (!(await wholeLimits(opened.backend)).has("memoryMiB"))
      return context.skip("no control group holds memory");
    const sandbox = await makeSandbox(opened.backend, { limits: { memoryMiB: 64, diskMiB: 512 } });
    let loss: string | undefined;
    void sandbox.lost?.then((reason) => (loss = reason));
    const { exit } = await runScript(sandbox, "exec dd if=/dev/zero of=/dev/null bs=256M count=1");
    assert.deepEqual(exit, { signal: "SIGKILL" });
    assert.equal((await runScript(sandbox, "echo alive")).output, "alive\n");
    assert.equal(loss, undefined);

    await assert.rejects(sandbox.files.write("/home/user/big", mebibytes(128)));
    assert.equal(await sandbox.lost, "out of memory");
    await sandbox.destroy();
    assert.deepEqual(await opened.leaks(), []);
  });

  it("by a fault of the host is reported by the server that adopted it, despite earlier kills for lack of memory", async () => {
    await using opened = await openTestBackend();
    const sandbox = await makeSandbox(opened.backend, { limits: { memoryMiB: 64 } });
    await runScript(sandbox, "dd if=/dev/zero of=/dev/null bs=256M count=1");
    await opened.backend.close();
    const [adopted] = await opened.backend.recover();
    assert.ok(adopted);
    await endInit(opened.directory, adopted);
    assert.equal(await adopted.lost, "backend lost");
    await adopted.destroy();
    assert.deepEqual(await opened.leaks(), []);
  });
});
