import assert from "node:assert/strict";
import { randomInt } from "node:crypto";
import { mkdir, readdir } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, describe, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { Sandbox } from "@e2b/code-interpreter";
import { API_KEY } from "../../harness/server/api-key.js";
import { exchange } from "../../harness/clients/exchange.js";
import { isRunning, runningProcesses } from "../../harness/host/running-processes.js";
import { type Installation, makeInstallation, ServerProcess } from "../../harness/server/server-process.js";

describe("a server that ends", { timeout: 240_000 }, () => {
  let installation: Installation;
  /** Directory for all files of servers and sandboxes. */
  let scratch: string;
  const servers: ServerProcess[] = [];

  const install = async (drainTimeout: string): Promise<void> => {
    installation = await makeInstallation({ config: { http: { drainTimeout } } });
    scratch = join(installation.directory, "tmp");
    await mkdir(scratch);
  };
  const start = async (): Promise<ServerProcess> => {
    const server = await ServerProcess.start(installation.configFile, { TMPDIR: scratch });
    servers.push(server);
    return server;
  };
  const create = (server: ServerProcess): Promise<Sandbox> =>
    Sandbox.create({ apiUrl: server.url, sandboxUrl: server.url, apiKey: API_KEY });
  const list = async (server: ServerProcess): Promise<unknown> =>
    (await exchange(server.url, { path: "/v2/sandboxes", headers: { "x-api-key": API_KEY } })).json();

  afterEach(async () => {
    for (const server of servers.splice(0)) {
      server.signal("SIGKILL");
      await server.ended;
    }
    await installation.remove();
  });

  it("by kill -9 leaves nothing that the next start does not clean up", async () => {
    await install("500ms");
    const first = await start();
    const [one, two] = await Promise.all([create(first), create(first)]);
    const processes = await startProcesses(one);
    const kernelPid = Number((await two.runCode("import os; os.getpid()")).text);
    assert.ok(await isRunning(kernelPid));
    const left = await readdir(scratch);

    first.signal("SIGKILL");
    assert.deepEqual(await first.ended, { code: null, signal: "SIGKILL" });

    const second = await start();
    assert.deepEqual(
      await runningProcesses(processes.marker),
      [],
      "commands of the killed server's sandboxes",
    );
    assert.equal(
      await isRunning(kernelPid),
      false,
      `kernel ${kernelPid} outlived its server and the next start`,
    );
    const stillThere = (await readdir(scratch)).filter((name) => left.includes(name));
    assert.deepEqual(stillThere, [], "directories of the killed server");

    assert.deepEqual(await list(second), []);
    for (const { sandboxId } of [one, two]) {
      const headers = { "x-api-key": API_KEY };
      const info = await exchange(second.url, { path: `/sandboxes/${sandboxId}`, headers });
      assert.equal(info.status, 404);
      assert.equal((info.json() as { code: unknown }).code, 404);
      const health = await exchange(second.url, {
        path: "/health",
        headers: { "e2b-sandbox-id": sandboxId, "e2b-sandbox-port": "49983" },
      });
      assert.equal(health.status, 502);
    }

    const fresh = await create(second);
    assert.equal((await fresh.commands.run("echo works")).stdout, "works\n");
    assert.equal((await fresh.runCode("6 * 7")).text, "42");
    assert.deepEqual(await second.stop(), { code: 0, signal: null });
  });

  it("by SIGTERM leaves no process, no directory and no socket", async () => {
    await install("500ms");
    const server = await start();
    const sandbox = await create(server);
    const processes = await startProcesses(sandbox);
    const kernelPid = Number((await sandbox.runCode("import os; os.getpid()")).text);

    assert.deepEqual(await server.stop(), { code: 0, signal: null });
    assert.deepEqual(await runningProcesses(processes.marker), []);
    assert.equal(await isRunning(kernelPid), false);
    assert.deepEqual(await readdir(scratch), []);

    const next = await start();
    assert.deepEqual(await list(next), []);
    await next.stop();
  });

  it("stops at once at a second signal", async () => {
    // The grace time is longer than the test: only a second signal ends running requests.
    await install("60s");
    const server = await start();
    const sandbox = await create(server);
    const processes = await startProcesses(sandbox);
    server.signal("SIGTERM");
    await eventually("closed doors", () =>
      exchange(server.url, { path: "/health" }).then(
        () => false,
        () => true,
      ),
    );
    const startedAtMs = performance.now();
    server.signal("SIGTERM");
    assert.deepEqual(await server.ended, { code: 143, signal: null });
    assert.ok(performance.now() - startedAtMs < 2_000, "it took its time");

    const next = await start();
    assert.deepEqual(await runningProcesses(processes.marker), []);
    assert.deepEqual(await next.stop(), { code: 0, signal: null });
    assert.deepEqual(await readdir(scratch), []);
  });
});

/**
 * A command with a client that follows it, one in its background, and two that left its session, of
 * which one has cleared its environment. All carry the marker in their arguments.
 */
async function startProcesses(sandbox: Sandbox) {
  const marker = `${randomInt(10_000_000, 100_000_000)}.5`;
  const handle = await sandbox.commands.run(
    `sleep ${marker} & setsid -f sleep ${marker}; env -i /usr/bin/setsid -f /bin/sleep ${marker}; exec sleep ${marker}`,
    { background: true },
  );
  // The client's error after the server's end is not checked here.
  handle.wait().catch(() => undefined);
  await eventually("four processes", async () => (await runningProcesses(`sleep ${marker}`)).length >= 4);
  return { marker: `sleep ${marker}` };
}
