// Tests for a user without subordinate ids, run as one by `ordinary-user.test.ts`.
import assert from "node:assert/strict";
import { it } from "node:test";
import { hasAccounts, openTestBackend } from "./test-backend.js";
import { makeSandbox, runScript } from "./test-sandbox.js";

it("its user is uid 1000 and owns everything, and root is another name for it", async () => {
  await using opened = await openTestBackend();
  assert.equal(await hasAccounts(opened.backend), false);
  assert.equal(opened.backend.images, undefined);
  const sandbox = await makeSandbox(opened.backend);
  const script = "id -un; id -u; touch ~/mine; stat -c %u ~/mine /etc/passwd; hostname";
  assert.equal((await runScript(sandbox, script)).output, `user\n1000\n1000\n1000\n${sandbox.id}\n`);
  const asRoot = await runScript(sandbox, "id -u; touch /root/mine && echo made", "root");
  assert.equal(asRoot.output, "1000\nmade\n");
  await sandbox.destroy();
  assert.deepEqual(await opened.leaks(), []);
});

it("no program inside gains privileges", async () => {
  await using opened = await openTestBackend();
  const sandbox = await makeSandbox(opened.backend);
  const { output } = await runScript(sandbox, "grep -E 'NoNewPrivs|CapEff' /proc/self/status; sudo -n id -u");
  assert.match(output, /^CapEff:\t0+\nNoNewPrivs:\t1\n/);
  assert.doesNotMatch(output, /^0$/m);
  for (const attempt of ["mount -t tmpfs none /mnt", "unshare -U true", "kill -9 1; false"]) {
    assert.notDeepEqual((await runScript(sandbox, attempt)).exit, { code: 0 }, attempt);
  }
  assert.deepEqual((await runScript(sandbox, "true")).exit, { code: 0 });
  await sandbox.destroy();
});

it("a volume is that user's, too, and can be read-only", async () => {
  await using opened = await openTestBackend();
  const { volumes } = opened.backend;
  await volumes.make({ id: "shared", sizeMiB: 16 });
  const mount = { volume: "shared", path: "/data" };
  const writer = await makeSandbox(opened.backend, { mounts: [{ ...mount, readOnly: false }] });
  const reader = await makeSandbox(opened.backend, { mounts: [{ ...mount, readOnly: true }] });
  assert.equal((await runScript(writer, "echo text > /data/file; stat -c %u /data")).output, "1000\n");
  const { output } = await runScript(reader, "cat /data/file; touch /data/new 2> /dev/null || echo refused");
  assert.equal(output, "text\nrefused\n");
  await Promise.all([writer.destroy(), reader.destroy()]);
  await volumes.remove("shared");
  assert.deepEqual(await opened.leaks(), []);
});
