// Tests for a user without delegated control groups, run as one by `ordinary-user.test.ts`.
import assert from "node:assert/strict";
import { it } from "node:test";
import { wholeLimits, openTestBackend } from "./test-backend.js";
import { makeSandbox, runScript } from "./test-sandbox.js";

it("limits that cannot be enforced are reported, and features that need control groups are absent", async () => {
  await using opened = await openTestBackend();
  assert.deepEqual([...(await wholeLimits(opened.backend))], ["openFiles"]);
  const found = await opened.backend.found();
  const reach = Object.fromEntries(found?.limits.map(({ name, reach }) => [name, reach]) ?? []);
  assert.equal(reach["memoryMiB"], "part");
  assert.equal(reach["processes"], "part");
  assert.equal(reach["cpuCount"], "none");
  assert.equal(reach["pausing"], "none");
  const sandbox = await makeSandbox(opened.backend);
  assert.equal(sandbox.pausing, undefined);
  assert.equal(sandbox.resizing, undefined);
  await sandbox.destroy();
});

it("processes are counted per sandbox", async () => {
  await using opened = await openTestBackend();
  const sandbox = await makeSandbox(opened.backend, { limits: { processes: 32 } });
  const other = await makeSandbox(opened.backend, { limits: { processes: 32 } });
  const many = "i=0; while [ $i -lt 64 ]; do i=$((i + 1)); sleep 60 > /dev/null 2>&1 & done";
  const { exit, output } = await runScript(sandbox, many);
  assert.notDeepEqual(exit, { code: 0 });
  assert.match(output, /fork/);
  assert.deepEqual((await runScript(other, "sleep 0 & sleep 0 & wait; true")).exit, { code: 0 });
  await Promise.all([sandbox.destroy(), other.destroy()]);
});

it("a process has no more memory than its sandbox should have", async () => {
  await using opened = await openTestBackend();
  const sandbox = await makeSandbox(opened.backend, { limits: { memoryMiB: 64 } });
  const much = "dd if=/dev/zero of=/dev/null bs=128M count=1";
  assert.notDeepEqual((await runScript(sandbox, much)).exit, { code: 0 });
  assert.deepEqual((await runScript(sandbox, much.replace("128M", "16M"))).exit, { code: 0 });
  await sandbox.destroy();
});

it("files belong to root and to the user", async () => {
  await using opened = await openTestBackend();
  const sandbox = await makeSandbox(opened.backend);
  const { output } = await runScript(sandbox, "touch mine; stat -c %u mine /etc/passwd; id -u");
  assert.equal(output, "1000\n0\n1000\n");
  await sandbox.destroy();
  assert.deepEqual(await opened.leaks(), []);
});
