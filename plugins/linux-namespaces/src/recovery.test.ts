import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { ControlGroup } from "./limits/control-groups.js";
import { NamespaceSandbox } from "./namespace-sandbox.js";
import { isAlive, readFacts, readInit, type SandboxPaths, sandboxPaths } from "./launcher/sandbox-record.js";
import { isOnDisk, openTestBackend, reasonToSkip } from "./testing/test-backend.js";
import { makeSandbox, runScript } from "./testing/test-sandbox.js";

const SERVER = fileURLToPath(new URL("./testing/server-process.js", import.meta.url));

const pathsOf = (directory: string, id: string) => sandboxPaths(join(directory, "sandboxes", id));

async function untilStopping(paths: SandboxPaths): Promise<void> {
  while ((await readFacts(paths))?.isStopped !== true) await delay(1);
}

/** Creates sandboxes with a server that is then killed. Returns their ids. */
async function makeAndKill(
  directory: string,
  count: number,
  { stopsForMs }: { readonly stopsForMs?: number } = {},
): Promise<Map<string, number>> {
  const words = [directory, String(count), ...(stopsForMs === undefined ? [] : ["stop"])];
  const server = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", SERVER, ...words], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const made = new Map<string, number>();
  for await (const line of createInterface({ input: server.stdout })) {
    if (line === "ready") break;
    const [id = "", pid] = line.split(" ");
    made.set(id, Number(pid));
  }
  if (stopsForMs !== undefined) {
    await Promise.all([...made.keys()].map((id) => untilStopping(pathsOf(directory, id))));
    await delay(stopsForMs);
  }
  await kill(server);
  return made;
}

async function kill(server: ChildProcess): Promise<void> {
  const ended = once(server, "exit");
  server.kill("SIGKILL");
  await ended;
}

/** Ends the kernel's part of a sandbox, like a crash of the host. */
async function loseAllButFiles(paths: SandboxPaths): Promise<void> {
  const init = await readInit(paths);
  if (init !== undefined && (await isAlive(init))) {
    process.kill(init.pid, "SIGKILL");
    while (await isAlive(init)) await delay(10);
  }
  const facts = await readFacts(paths);
  await new ControlGroup(facts?.groups ?? {}).remove();
}

describe("after a server was killed", { skip: reasonToSkip() ?? false, concurrency: 1 }, () => {
  it("the next one adopts its sandboxes with their processes", async () => {
    await using opened = await openTestBackend();
    const made = await makeAndKill(opened.directory, 3);
    const recovered = await opened.backend.recover();
    assert.deepEqual(recovered.map(({ id }) => id).toSorted(), [...made.keys()].toSorted());
    for (const sandbox of recovered) {
      assert.ok(sandbox instanceof NamespaceSandbox);
      const [running, ...others] = await sandbox.adoption.processes();
      assert.equal(others.length, 0);
      assert.equal(running?.pid, made.get(sandbox.id));
      assert.ok(running);
      await running.write(Buffer.from("the restart\n"));
      const pieces: Uint8Array[] = [];
      for await (const { data } of running.output) pieces.push(data);
      assert.match(Buffer.concat(pieces).toString(), /after the restart\n$/);
      assert.deepEqual(await running.exit, { code: 43 });
      assert.equal((await runScript(sandbox, "echo again")).output, "again\n");
      await sandbox.destroy();
    }
    assert.deepEqual(await opened.leaks(), []);
  });

  it("half-created sandboxes are removed", async () => {
    await using opened = await openTestBackend();
    const [id = ""] = (await makeAndKill(opened.directory, 1)).keys();
    const sandboxes = join(opened.directory, "sandboxes");
    await mkdir(join(sandboxes, "empty"));
    await mkdir(join(sandboxes, "unwhole"));
    await writeFile(join(sandboxes, "unwhole", "sandbox.json"), '{"id":');
    await mkdir(join(sandboxes, "dead"));
    await writeFile(join(sandboxes, "dead", "init"), "1 1\n");
    const recovered = await opened.backend.recover();
    assert.deepEqual(
      recovered.map((sandbox) => sandbox.id),
      [id],
    );
    await recovered[0]?.destroy();
    assert.deepEqual(await opened.leaks(), []);
  });

  it("sandboxes that the next one detaches are adopted by the one after it", async () => {
    await using opened = await openTestBackend();
    const sandbox = await makeSandbox(opened.backend);
    await runScript(sandbox, "echo kept > kept");
    await opened.backend.close();
    const [again, ...others] = await opened.backend.recover();
    assert.equal(others.length, 0);
    assert.ok(again);
    assert.equal((await runScript(again, "cat ~/kept")).output, "kept\n");
    await again.destroy();
  });

  it("a stopped one restarts with links that its guest planted, which the host does not follow", async () => {
    await using opened = await openTestBackend();
    const sandbox = await makeSandbox(opened.backend);
    const spec = { id: sandbox.id, template: "base", limits: {}, allowInternetAccess: true };
    const { signal } = new AbortController();
    const planted = "rm -rf /etc/hosts /run/e2b; ln -s /etc/passwd /etc/hosts; ln -s /etc /run/e2b";
    await runScript(sandbox, planted, "root");
    await runScript(sandbox, "sleep 300 > /dev/null 2>&1 & echo kept > ~/kept");
    await sandbox.stopping?.stop();
    await opened.backend.close();
    const [found] = await opened.backend.recover();
    assert.ok(found);
    assert.deepEqual(await found.adoption?.processes(), []);
    await assert.rejects(runScript(found, "true"), { code: "unavailable" });
    await found.stopping?.start(spec, signal);
    assert.equal((await runScript(found, "cat ~/kept; readlink /etc/hosts")).output, "kept\n/etc/passwd\n");
    await found.stopping?.stop();
    await found.destroy();
    assert.deepEqual(await opened.leaks(), []);
  });

  it("one that was being stopped restarts, even after a restart of the host", async (t) => {
    await using opened = await openTestBackend();
    if (!(await isOnDisk(opened.backend))) return t.skip("its layers are kept in memory");
    await opened.backend.close();
    let isRebooted = false;
    for (const stopsForMs of [0, 0, 16, 16]) {
      const [id = ""] = (await makeAndKill(opened.directory, 1, { stopsForMs })).keys();
      if (isRebooted) await loseAllButFiles(pathsOf(opened.directory, id));
      isRebooted = !isRebooted;
      const [found] = await opened.backend.recover();
      assert.equal(found?.id, id);
      await found.stopping?.stop();
      await found.stopping?.start(
        { id, template: "base", limits: {}, allowInternetAccess: true },
        new AbortController().signal,
      );
      assert.deepEqual(await found.adoption?.processes(), []);
      assert.equal((await runScript(found, "cat /home/user/kept")).output, "kept\n");
      await found.destroy();
      assert.deepEqual(await opened.leaks(), []);
      await opened.backend.close();
    }
  });

  it("volumes are there for the next one, with the sandboxes that have them, and what is half made can be removed", async () => {
    await using opened = await openTestBackend();
    const { volumes } = opened.backend;
    await volumes.make({ id: "shared", sizeMiB: 16 });
    const mounts = [{ volume: "shared", path: "/data", readOnly: false }];
    const sandbox = await makeSandbox(opened.backend, { mounts });
    await runScript(sandbox, "echo kept > /data/file");
    await opened.backend.close();
    const [again] = await opened.backend.recover();
    assert.ok(again);
    assert.equal((await runScript(again, "cat /data/file; echo more >> /data/file")).output, "kept\n");
    const other = await makeSandbox(opened.backend, { mounts });
    assert.equal((await runScript(other, "cat /data/file")).output, "kept\nmore\n");
    await Promise.all([again.destroy(), other.destroy()]);
    for (const id of ["empty", "begun"]) await mkdir(join(opened.directory, "volumes", id));
    await mkdir(join(opened.directory, "volumes", "begun", "data.making"));
    await writeFile(join(opened.directory, "volumes", "begun", "volume.json.new"), '{"sizeMiB":');
    assert.deepEqual((await volumes.list()).toSorted(), ["begun", "empty", "shared"]);
    for (const id of await volumes.list()) await volumes.remove(id);
    assert.deepEqual(await opened.leaks(), []);
  });

  it("a creation that is aborted at any moment leaves nothing on the host or in memory", async () => {
    await using opened = await openTestBackend();
    await opened.backend.check();
    for (let delayMs = 0; delayMs < 16; delayMs++) {
      const id = `aborted${delayMs}`;
      const spec = { id, template: "base", limits: {}, allowInternetAccess: false };
      const made = await opened.backend.provision(spec, AbortSignal.timeout(delayMs)).catch(() => undefined);
      await made?.destroy();
      assert.equal(opened.backend.aliveCount, 0);
      assert.deepEqual(await opened.leaks(), []);
    }
  });

  it("a second server does not change the directory of a running one", async () => {
    await using opened = await openTestBackend();
    const sandbox = await makeSandbox(opened.backend);
    await using second = await openTestBackend({ directory: opened.directory });
    await assert.rejects(second.backend.check(), /another server uses it/);
    assert.deepEqual((await runScript(sandbox, "true")).exit, { code: 0 });
    await sandbox.destroy();
  });
});
