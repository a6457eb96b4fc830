// Tests on a host with control groups of version 2 alone, which `control-groups.test.ts` provides.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdir, readFile, readdir, rmdir, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { it } from "node:test";
import { openTestBackend } from "./test-backend.js";
import { makeSandbox, runScript } from "./test-sandbox.js";

const TOP = "/sys/fs/cgroup";

/** The group of a name, anywhere below another; those that other tests remove meanwhile are passed over. */
async function findGroup(above: string, name: string): Promise<string | undefined> {
  const entries = await readdir(above, { withFileTypes: true }).catch(() => []);
  for (const entry of entries) {
    if (!entry.isDirectory()) continue;
    const path = join(above, entry.name);
    const found = entry.name === name ? path : await findGroup(path, name);
    if (found !== undefined) return found;
  }
  return undefined;
}

async function groupOf(id: string): Promise<string> {
  const found = await findGroup(TOP, id);
  assert.ok(found !== undefined, `there is no group of ${id}`);
  return found;
}

async function linesOf(path: string): Promise<string[]> {
  return (await readFile(path, "utf8")).split("\n").filter(Boolean);
}

it("a sandbox starts in a separate group, which it sees as the root, and leaves none", async () => {
  await using opened = await openTestBackend();
  await opened.backend.check();
  const pausing = (await opened.backend.found())?.limits.find(({ name }) => name === "pausing");
  assert.equal(pausing?.how, "control groups of version 2");
  const sandbox = await makeSandbox(opened.backend);
  const group = await groupOf(sandbox.id);
  const started = await sandbox.spawn({ path: "/bin/sleep", args: ["300"], env: {} });
  assert.equal((await linesOf(join(group, "cgroup.procs"))).length, 2);
  assert.match((await runScript(sandbox, "cat /proc/self/cgroup")).output, /^0::\/$/m);
  assert.ok((await sandbox.stats()).memoryTotalBytes > 0);
  await started.kill("SIGKILL");
  await sandbox.destroy();
  assert.equal(existsSync(group), false);
});

it("it is frozen and resumed, and can be destroyed while frozen", async () => {
  await using opened = await openTestBackend();
  const sandbox = await makeSandbox(opened.backend);
  const events = join(await groupOf(sandbox.id), "cgroup.events");
  await sandbox.pausing?.pause();
  assert.ok((await linesOf(events)).includes("frozen 1"));
  await sandbox.pausing?.resume();
  assert.ok((await linesOf(events)).includes("frozen 0"));
  assert.deepEqual((await runScript(sandbox, "true")).exit, { code: 0 });
  await sandbox.pausing?.pause();
  await sandbox.destroy();
  assert.equal(existsSync(dirname(events)), false);
});

it("processes that an earlier server left in a group are killed, even frozen ones", async () => {
  await using opened = await openTestBackend();
  const sandbox = await makeSandbox(opened.backend);
  const left = join(dirname(await groupOf(sandbox.id)), "left");
  await sandbox.destroy();
  await mkdir(left);
  const lonely = spawn("sleep", ["300"], { stdio: "ignore" });
  const ended = once(lonely, "exit");
  await writeFile(join(left, "cgroup.procs"), String(lonely.pid));
  await writeFile(join(left, "cgroup.freeze"), "1");
  await opened.backend.recover();
  assert.deepEqual(await ended, [null, "SIGKILL"]);
  assert.equal(existsSync(left), false);
});

it("in a service of systemd before 254 they are at the top, and the service can start again beside them", async () => {
  const service = join(TOP, `coppice-test-${process.pid}.service`);
  await mkdir(service);
  const [before = ""] = (await linesOf("/proc/self/cgroup")).filter((line) => line.startsWith("0::"));
  await writeFile(join(service, "cgroup.procs"), String(process.pid));
  try {
    await using opened = await openTestBackend();
    const sandbox = await makeSandbox(opened.backend);
    assert.equal(dirname(dirname(await groupOf(sandbox.id))), TOP);
    const starting = spawn("sleep", ["300"], { stdio: "ignore" });
    await writeFile(join(service, "cgroup.procs"), String(starting.pid));
    starting.kill("SIGKILL");
    await once(starting, "exit");
    await sandbox.destroy();
  } finally {
    await writeFile(join(TOP, before.slice("0::/".length), "cgroup.procs"), String(process.pid));
    await rmdir(service);
  }
});
