// Tests on a file system with project quotas, which `project-quotas.test.ts` mounts.
import assert from "node:assert/strict";
import { it } from "node:test";
import { wholeLimits, openTestBackend } from "./test-backend.js";
import { ROOT, reasonWithoutUnpacker, sandboxOf, unpack, writeText } from "./test-image.js";
import { makeSandbox, runScript } from "./test-sandbox.js";

const MEBIBYTE = 2 ** 20;

it("a program meets the disk limit of its sandbox, others do not", async () => {
  await using opened = await openTestBackend();
  assert.ok((await wholeLimits(opened.backend)).has("diskMiB"));
  const sandbox = await makeSandbox(opened.backend, { limits: { diskMiB: 16 } });
  const other = await makeSandbox(opened.backend, { limits: { diskMiB: 64 } });
  const fill = "dd if=/dev/zero of=big bs=1M count=32";
  for (const user of ["user", "root"]) {
    const { exit, output } = await runScript(sandbox, fill, user);
    assert.notDeepEqual(exit, { code: 0 }, user);
    assert.match(output, /Disk quota exceeded/);
  }
  assert.deepEqual((await runScript(other, fill)).exit, { code: 0 });
  const { diskTotalBytes, diskUsedBytes } = await sandbox.stats();
  assert.equal(diskTotalBytes, 16 * MEBIBYTE);
  assert.ok(diskUsedBytes > 15 * MEBIBYTE && diskUsedBytes <= diskTotalBytes, String(diskUsedBytes));
  await Promise.all([sandbox.destroy(), other.destroy()]);
});

it("a program meets the limit of a volume, whose data counts for no sandbox", async () => {
  await using opened = await openTestBackend();
  const { volumes } = opened.backend;
  for (const id of ["small", "large"]) await volumes.make({ id, sizeMiB: id === "small" ? 16 : 64 });
  const mounts = ["small", "large"].map((volume) => ({ volume, path: `/${volume}`, readOnly: false }));
  const sandbox = await makeSandbox(opened.backend, { limits: { diskMiB: 16 }, mounts });
  const fill = (path: string) => `dd if=/dev/zero of=${path}/big bs=1M count=32`;
  for (const user of ["user", "root"]) {
    const { exit, output } = await runScript(sandbox, fill("/small"), user);
    assert.notDeepEqual(exit, { code: 0 }, user);
    assert.match(output, /Disk quota exceeded/);
  }
  assert.deepEqual((await runScript(sandbox, fill("/large"))).exit, { code: 0 });
  assert.ok((await sandbox.stats()).diskUsedBytes < MEBIBYTE);
  // The next server continues with the same counts.
  await opened.backend.close();
  const [adopted] = await opened.backend.recover();
  assert.ok((await volumes.usage("large")) >= 32 * MEBIBYTE);
  const used = await volumes.usage("small");
  assert.ok(used > 15 * MEBIBYTE && used <= 16 * MEBIBYTE, String(used));
  assert.notDeepEqual((await runScript(adopted ?? sandbox, `rm /small/big; ${fill("/small")}`)).exit, {
    code: 0,
  });
  await adopted?.destroy();
  for (const id of ["small", "large"]) await volumes.remove(id);
  assert.deepEqual(await opened.leaks(), []);
});

it("the limit of a running sandbox can be raised, and removed files free space", async () => {
  await using opened = await openTestBackend();
  const sandbox = await makeSandbox(opened.backend, { limits: { diskMiB: 16 } });
  const fill = "dd if=/dev/zero of=big bs=1M count=24";
  assert.notDeepEqual((await runScript(sandbox, fill)).exit, { code: 0 });
  assert.deepEqual((await runScript(sandbox, "rm big && dd if=/dev/zero of=big bs=1M count=8")).exit, {
    code: 0,
  });
  await sandbox.resizing?.resize({ diskMiB: 48 });
  assert.deepEqual((await runScript(sandbox, fill)).exit, { code: 0 });
  await sandbox.destroy();
  assert.deepEqual(await opened.leaks(), []);
});

it("an image keeps the project of the sandbox that it was made of, and counts for no other", async (context) => {
  const reason = await reasonWithoutUnpacker();
  if (reason !== undefined) return context.skip(reason);
  await using opened = await openTestBackend();
  const { backend } = opened;
  const lower = await unpack(backend, { layers: [ROOT] });
  const source = await sandboxOf(backend, lower);
  await writeText(source, "/srv/big", "x".repeat(8 * MEBIBYTE));
  await source.committing?.commit("upper");
  await source.destroy();
  // The next server must not give the number to another sandbox.
  await backend.close();
  await backend.recover();
  const others = await Promise.all([1, 2, 3].map(() => sandboxOf(backend, "upper")));
  for (const other of others) assert.ok((await other.stats()).diskUsedBytes < MEBIBYTE);
  const used = (await backend.images?.usage("upper")) ?? 0;
  assert.ok(used >= 8 * MEBIBYTE && used < 9 * MEBIBYTE, String(used));
  await Promise.all(others.map((other) => other.destroy()));
  for (const id of [lower, "upper"]) await backend.images?.remove(id);
  assert.deepEqual(await opened.leaks(), []);
});
