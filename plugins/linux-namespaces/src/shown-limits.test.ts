import assert from "node:assert/strict";
import { cpus } from "node:os";
import { describe, it } from "node:test";
import type { Sandbox } from "@coppice/core/backend";
import { openTestBackend, reasonToSkip, wholeLimits } from "./testing/test-backend.js";
import { makeSandbox, runScript } from "./testing/test-sandbox.js";

const outputOf = async (sandbox: Sandbox, script: string, user?: string): Promise<string> =>
  (await runScript(sandbox, script, user)).output.trim();
/** Columns of `free -m`: total, used, free. */
const memoryOf = async (sandbox: Sandbox): Promise<readonly number[]> =>
  (await outputOf(sandbox, "free -m | awk '/^Mem:/ { print $2, $3, $4 }'")).split(" ").map(Number);
/** Holds 100 MiB, and prints how much of the memory is available before and meanwhile, in one process. */
const HOLD = `
def available():
    lines = dict(line.split(":") for line in open("/proc/meminfo"))
    return int(lines["MemAvailable"].split()[0]) // 1024
before = available()
held = bytearray(100 << 20)
print(before - available())
`;

describe("what programs in a sandbox see of their host", { skip: reasonToSkip() ?? false }, () => {
  it("is the sandbox's memory and use, at every look and after a change of its limits", async (context) => {
    await using opened = await openTestBackend();
    const limits = await wholeLimits(opened.backend);
    if (!limits.has("memoryMiB") || !limits.has("cpuCount"))
      return context.skip("no control group limits it");
    const sandbox = await makeSandbox(opened.backend, { limits: { memoryMiB: 256, cpuCount: 1 } });
    const [total = 0, used = 0, free = 0] = await memoryOf(sandbox);
    assert.equal(total, 256);
    assert.ok(used >= 0 && used < 64 && free > 128, `${used} used, ${free} free`);
    const taken = Number(await outputOf(sandbox, `python3 -c '${HOLD}'`));
    assert.ok(taken > 90 && taken < 120, `${taken} MiB were taken`);
    await sandbox.resizing?.resize({ memoryMiB: 384, cpuCount: 1 });
    assert.deepEqual((await memoryOf(sandbox))[0], 384);
    assert.equal(await outputOf(sandbox, "tail -n +2 /proc/swaps"), "");
    // The agent reads its own file for the API, too.
    assert.match(String(await textOf(sandbox, "/proc/meminfo")), /^MemTotal: +393216 kB\n/);
    await sandbox.destroy();
  });

  it("is its processors", async (context) => {
    await using opened = await openTestBackend();
    if (!(await wholeLimits(opened.backend)).has("cpuCount"))
      return context.skip("no control group limits it");
    const most = cpus().length;
    const sandbox = await makeSandbox(opened.backend, { limits: { cpuCount: 1 } });
    const counts = [
      "python3 -c 'import os; print(os.cpu_count())'",
      "grep -c ^processor /proc/cpuinfo",
      "grep -c '^cpu[0-9]' /proc/stat",
      "getconf _NPROCESSORS_ONLN",
      "ls -d /sys/devices/system/cpu/cpu[0-9]* | wc -l",
      "nproc",
    ];
    for (const count of counts) assert.equal(await outputOf(sandbox, count), "1", count);
    assert.equal(await outputOf(sandbox, "cat /sys/devices/system/cpu/online"), "0");
    await sandbox.resizing?.resize({ cpuCount: most });
    assert.equal(await outputOf(sandbox, counts[1] ?? ""), String(most));
    assert.equal(await outputOf(sandbox, "nproc"), String(most));
    await sandbox.destroy();
  });

  it("costs nothing while nobody looks, holds nobody up, and cannot be changed", async (context) => {
    await using opened = await openTestBackend();
    if (!(await wholeLimits(opened.backend)).has("cpuCount"))
      return context.skip("no control group limits it");
    const sandbox = await makeSandbox(opened.backend, { limits: { memoryMiB: 256, cpuCount: 1 } });
    const files = "/proc/meminfo /proc/cpuinfo /proc/stat /proc/swaps /sys/devices/system/cpu/online";
    const readers = `for n in 1 2 3 4 5 6 7 8; do (for i in 1 2 3 4 5 6 7 8 9 10; do cat ${files} > /dev/null || echo no; done) & done; wait; echo done`;
    assert.equal(await outputOf(sandbox, readers), "done");
    // One who keeps a file open keeps nobody else from it.
    const kept = "exec 3< /proc/meminfo; cat /proc/meminfo > /dev/null; cat /proc/meminfo | head -1";
    assert.match(await outputOf(sandbox, kept), /^MemTotal: +262144 kB$/);
    for (const file of [...files.split(" "), "/proc/sys/kernel/random/boot_id"]) {
      const changed = await runScript(sandbox, `echo x > ${file}`, "root");
      assert.notEqual(changed.exit.code, 0, file);
    }
    await sandbox.destroy();
    assert.deepEqual(await opened.leaks(), []);
  });

  it("is an id of its boot of its own, another one after a stop", async (context) => {
    await using opened = await openTestBackend();
    const [one, other] = [await makeSandbox(opened.backend), await makeSandbox(opened.backend)];
    const bootOf = (sandbox: Sandbox) => outputOf(sandbox, "cat /proc/sys/kernel/random/boot_id");
    const first = await bootOf(one);
    assert.match(first, /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
    assert.notEqual(await bootOf(other), first);
    assert.equal(await bootOf(one), first);
    if (one.stopping === undefined) return context.skip("it cannot be stopped");
    await one.stopping.stop();
    const spec = { id: one.id, template: "code-interpreter-v1", limits: {}, allowInternetAccess: false };
    await one.stopping.start(spec, new AbortController().signal);
    assert.notEqual(await bootOf(one), first);
    await Promise.all([one.destroy(), other.destroy()]);
  });
});

async function textOf(sandbox: Sandbox, path: string): Promise<string> {
  await using file = await sandbox.files.read(path);
  return Buffer.concat(await Array.fromAsync(file.content())).toString();
}
