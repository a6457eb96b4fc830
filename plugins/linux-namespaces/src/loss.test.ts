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
    const shortage = { resource: "memory", limit: "64 MiB" };
    assert.deepEqual(exit, { signal: "SIGKILL", shortage });
    assert.equal((await runScript(sandbox, "echo alive")).output, "alive\n");
    assert.equal(loss, undefined);

    await assert.rejects(sandbox.files.write("/home/user/big", mebibytes(128)));
    assert.equal(await sandbox.lost, "out of memory");
    await sandbox.destroy();
    assert.deepEqual(await opened.leaks(), []);
  });

  it("is not that of a process that fails, whose exit says what the sandbox lacked meanwhile", async (context) => {
    await using opened = await openTestBackend();
    const limits = await wholeLimits(opened.backend);
    if (!limits.has("memoryMiB") || !limits.has("processes"))
      return context.skip("no control group counts it");
    const sandbox = await makeSandbox(opened.backend, { limits: { memoryMiB: 64, processes: 16 } });
    const found: string[] = [];
    sandbox.shortages?.watch(({ resource }) => found.push(resource));
    // A shell that goes on tells 128 and the signal of its child.
    const child = "dd if=/dev/zero of=/dev/null bs=256M count=1; exit $?";
    assert.deepEqual((await runScript(sandbox, child)).exit, {
      code: 137,
      shortage: { resource: "memory", limit: "64 MiB" },
    });
    const many =
      'python3 -c \'import os\nfor _ in range(32): os.fork() or os.execvp("sleep", ["sleep", "1"])\'';
    const { exit } = await runScript(sandbox, many);
    assert.deepEqual(exit, { code: 1, shortage: { resource: "processes", limit: "16" } });
    assert.deepEqual(found, ["memory", "processes"]);
    assert.deepEqual((await runScript(sandbox, "exit 3")).exit, { code: 3 });
    assert.deepEqual((await runScript(sandbox, "kill -9 $$")).exit, { signal: "SIGKILL" });
    assert.deepEqual(found, ["memory", "processes"]);
    await sandbox.destroy();
  });

  it("comes with a host that shuts down, which asks by SIGTERM, and with no process inside that does the same", async () => {
    await using opened = await openTestBackend();
    const sandbox = await makeSandbox(opened.backend);
    assert.deepEqual((await runScript(sandbox, "kill -TERM 1", "root")).exit, { code: 0 });
    assert.equal((await runScript(sandbox, "echo alive")).output, "alive\n");
    await endInit(opened.directory, sandbox, "SIGTERM");
    assert.ok(await sandbox.lost);
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
