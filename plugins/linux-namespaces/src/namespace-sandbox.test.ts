import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { copyFile, mkdir, mkdtemp, readFile, realpath, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { SandboxError, type Sandbox } from "@coppice/core/backend";
import { eventually } from "@coppice/core/testing";
import { wholeLimits, openTestBackend, reasonToSkip } from "./testing/test-backend.js";
import { makeSandbox, type Ran, runScript } from "./testing/test-sandbox.js";

const MEBIBYTE = 2 ** 20;

async function writeMebibytes(sandbox: Sandbox, path: string, count: number): Promise<void> {
  await sandbox.files.write(path, megabytes());

  async function* megabytes(): AsyncGenerator<Uint8Array> {
    for (let each = 0; each < count; each++) yield Buffer.alloc(MEBIBYTE, each);
  }
}

function isFull(error: unknown): boolean {
  return error instanceof SandboxError && error.code === "resource_exhausted";
}

describe("limits of a linux-namespaces sandbox", { skip: reasonToSkip() ?? false, concurrency: 1 }, () => {
  it("writes over the API stop at the disk limit until files are removed", async () => {
    await using opened = await openTestBackend();
    const sandbox = await makeSandbox(opened.backend, { limits: { diskMiB: 16 } });
    await writeMebibytes(sandbox, "/home/user/first", 10);
    await assert.rejects(writeMebibytes(sandbox, "/home/user/second", 10), isFull);
    await assert.rejects(sandbox.files.stat("/home/user/second"));
    const { diskTotalBytes, diskUsedBytes } = await sandbox.stats();
    assert.equal(diskTotalBytes, 16 * MEBIBYTE);
    assert.ok(diskUsedBytes >= 10 * MEBIBYTE && diskUsedBytes <= diskTotalBytes, String(diskUsedBytes));
    await sandbox.files.remove("/home/user/first");
    await writeMebibytes(sandbox, "/home/user/second", 10);
    await sandbox.destroy();
  });

  it("the disk of a sandbox is measured again only after one of its processes has run", async (context) => {
    await using opened = await openTestBackend();
    if (!(await wholeLimits(opened.backend)).has("cpuCount"))
      return context.skip("no control group counts time");
    const sandbox = await makeSandbox(opened.backend, {});
    await writeMebibytes(sandbox, "/home/user/first", 1);
    let { cpuUsedPercent, diskUsedBytes } = await sandbox.stats();
    // The agent may still tidy up.
    for (let quiet = 0; quiet < 3; quiet = cpuUsedPercent > 0 ? 0 : quiet + 1) {
      await sleep(100);
      ({ cpuUsedPercent, diskUsedBytes } = await sandbox.stats());
    }
    const layer = join(opened.directory, "sandboxes", sandbox.id, "layers", "root", "upper");
    // By nobody inside, which no other way leads to.
    await writeFile(join(layer, "second"), Buffer.alloc(2 * MEBIBYTE));
    assert.equal((await sandbox.stats()).diskUsedBytes, diskUsedBytes);
    assert.deepEqual((await runScript(sandbox, "true")).exit, { code: 0 });
    // A fast program has ended before the clock of its group is read again.
    await eventually(
      "the new file counts",
      async () => (await sandbox.stats()).diskUsedBytes >= diskUsedBytes + 2 * MEBIBYTE,
    );
    await sandbox.destroy();
  });

  it("processor time counts all processes, also those that have ended unseen", async (context) => {
    await using opened = await openTestBackend();
    if (!(await wholeLimits(opened.backend)).has("cpuCount"))
      return context.skip("no control group counts time");
    const sandbox = await makeSandbox(opened.backend, {});
    const before = sandbox.cpuSeconds ?? NaN;
    const { output } = await runScript(
      sandbox,
      "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; awk '{print ($14 + $15) / 100}' /proc/$$/stat",
    );
    const own = Number(output);
    assert.ok(own > 0.05, `${own} s by the program's own account`);
    await eventually("its time counts", () => (sandbox.cpuSeconds ?? NaN) - before >= own - 0.02);
    assert.ok((sandbox.cpuSeconds ?? NaN) < before + own + 5, `${sandbox.cpuSeconds} s`);
    await sandbox.destroy();
  });

  it("with layers in memory, programs inside meet the disk limit, too", async () => {
    await using opened = await openTestBackend({ layers: "memory" });
    const sandbox = await makeSandbox(opened.backend, { limits: { diskMiB: 16 } });
    const { exit, output } = await runScript(sandbox, "dd if=/dev/zero of=big bs=1M count=20");
    assert.notDeepEqual(exit, { code: 0 });
    assert.match(output, /No space left on device/);
    assert.match((await runScript(sandbox, "df -BM --output=size / | tail -1")).output, /^ *16M\n$/);
    assert.equal((await sandbox.stats()).diskTotalBytes, 16 * MEBIBYTE);
    await sandbox.destroy();
    assert.deepEqual(await opened.leaks(), []);
  });

  it("limits are lowered only to more than the usage, and stay otherwise", async (context) => {
    await using opened = await openTestBackend();
    const held = await wholeLimits(opened.backend);
    if (!held.has("memoryMiB")) return context.skip("no control group holds memory");
    const sandbox = await makeSandbox(opened.backend, {
      limits: { diskMiB: 64, memoryMiB: 512, cpuCount: 1 },
    });
    const { resizing } = sandbox;
    assert.ok(resizing);
    await writeMebibytes(sandbox, "/home/user/kept", 20);
    const holder = await sandbox.spawn({
      path: "/usr/bin/perl",
      args: ["-e", '$x = "a" x (64 << 20); $| = 1; print "held\\n"; sleep 60'],
      env: {},
    });
    for await (const { data } of holder.output) if (Buffer.from(data).includes("held")) break;
    for (const [limits, message] of [
      [{ diskMiB: 64, memoryMiB: 32 }, /uses more memory than that/],
      [{ diskMiB: 10, memoryMiB: 512 }, /uses more disk than that/],
    ] as const) {
      await assert.rejects(resizing.resize({ cpuCount: 2, ...limits }), {
        code: "failed_precondition",
        message,
      });
      const { cpuCount, memoryTotalBytes, diskTotalBytes } = await sandbox.stats();
      assert.deepEqual(
        [cpuCount, memoryTotalBytes, diskTotalBytes],
        [1, 512 * MEBIBYTE, 64 * MEBIBYTE],
        String(message),
      );
    }
    await resizing.resize({ cpuCount: 2, memoryMiB: 256, diskMiB: 32 });
    assert.equal((await sandbox.stats()).diskTotalBytes, 32 * MEBIBYTE);
    await holder.kill("SIGKILL");
    await sandbox.destroy();
  });

  it("its CPU limit is a share, and its usage is relative to it", async (context) => {
    await using opened = await openTestBackend();
    if (!(await wholeLimits(opened.backend)).has("cpuCount"))
      return context.skip("no control group holds CPUs");
    const sandbox = await makeSandbox(opened.backend, { limits: { cpuCount: 0.2 } });
    const busy = runScript(sandbox, "timeout 1 sh -c 'while :; do :; done'; true");
    await sandbox.stats();
    await sleep(900);
    const { cpuUsedPercent } = await sandbox.stats();
    assert.ok(cpuUsedPercent > 2 && cpuUsedPercent <= 20, `${cpuUsedPercent} %`);
    await busy;
    await sandbox.destroy();
  });

  it("without sudo its programs gain no privileges", async () => {
    await using opened = await openTestBackend({ sudo: false });
    const sandbox = await makeSandbox(opened.backend);
    assert.match((await runScript(sandbox, "grep NoNewPrivs /proc/self/status")).output, /1$/m);
    assert.notDeepEqual((await runScript(sandbox, "sudo -n true")).exit, { code: 0 });
    await sandbox.destroy();
  });

  it("its Python is available as python, too", async () => {
    await using opened = await openTestBackend();
    for (const template of ["base", "code-interpreter-v1"]) {
      const sandbox = await makeSandbox(opened.backend, { template });
      const ask = (name: string): Promise<Ran> =>
        runScript(sandbox, `${name} -c 'import sys; print(sys.version, sys.prefix, sys.path)'`);
      const [python, python3] = [await ask("python"), await ask("python3")];
      // `base` has a Python where the host has one.
      if (template !== "base" || existsSync("/usr/bin/python3")) assert.deepEqual(python3.exit, { code: 0 });
      assert.deepEqual(python.exit, python3.exit, template);
      if (python3.exit.code === 0) assert.equal(python.output, python3.output, template);
      await sandbox.destroy();
    }
  });

  it("a template of a directory is any root file system, and no sandbox changes it", async () => {
    const root = await mkdtemp(join(tmpdir(), "coppice-root-"));
    try {
      await makeRoot(root);
      const templates = { small: { kind: "directory" as const, path: root } };
      await using opened = await openTestBackend({ templates });
      const sandbox = await makeSandbox(opened.backend, { template: "small" });
      const { output } = await runScript(sandbox, "cat /etc/motd; echo changed > /etc/motd; id -un", "root");
      assert.equal(output, "original\nroot\n");
      assert.deepEqual(await sandbox.user(), {
        name: "user",
        uid: 1000,
        gid: 1000,
        home: "/home/user",
        shell: "/bin/sh",
      });
      assert.equal(
        (await runScript(sandbox, "cat /etc/motd; touch ~/mine && id -u")).output,
        "changed\n1000\n",
      );
      await sandbox.destroy();
      assert.equal(await readFile(join(root, "etc/motd"), "utf8"), "original\n");
    } finally {
      await rm(root, { recursive: true });
    }
  });
});

/** Smallest root with a shell: some programs of this host with their libraries. */
async function makeRoot(root: string): Promise<void> {
  for (const name of ["bin", "etc", "usr"]) await mkdir(join(root, name));
  await writeFile(join(root, "etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n");
  await writeFile(join(root, "etc/motd"), "original\n");
  const paths = new Set<string>();
  for (const name of ["sh", "cat", "id", "touch"]) {
    const program = await realpath(`/bin/${name}`);
    await copyFile(program, join(root, "bin", name));
    const { stdout } = await promisify(execFile)("ldd", [program]);
    for (const [, library = ""] of stdout.matchAll(/(\/\S+) \(0x/g)) paths.add(library);
  }
  for (const path of paths) {
    await mkdir(dirname(join(root, path)), { recursive: true });
    await copyFile(await realpath(path), join(root, path));
  }
}
