import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { Sandbox as CodeSandbox } from "@e2b/code-interpreter";
import { eventually, type TestServer } from "@coppice/core/testing";
import { Sandbox, SandboxNotFoundError, TimeoutError } from "e2b";
import { API_KEY } from "../../harness/server/api-key.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

const COUNT = "i=0; while true; do i=$((i+1)); echo $i; sleep 0.05; done";

const HEARTBEAT_MS = 500;
const MOST_MISSES = 4;

describe("pausing through the SDKs", { skip: missingForNamespaces(), timeout: 240_000 }, () => {
  let server: TestServer;

  before(async () => {
    server = await startFullServer({
      backend: "linux-namespaces",
      settings: { jupyter: { heartbeat: { interval: `${HEARTBEAT_MS}ms`, maxMisses: MOST_MISSES } } },
    });
    pointSdkAt(server.url);
  });
  after(() => server.stop());

  const stateOf = async (id: string) => (await Sandbox.getInfo(id)).state;

  it("stops every process where it is, and resuming lets it go on with everything it had", async () => {
    const sandbox = await CodeSandbox.create({ metadata: { kept: "yes" } });
    await sandbox.runCode("x = 42");
    await sandbox.files.write("/tmp/note", "kept");
    let counted = 0;
    const counter = await sandbox.commands.run(COUNT, {
      background: true,
      timeoutMs: 0,
      onStdout: (text) => {
        counted = Number(text.trim().split("\n").at(-1));
      },
    });
    await eventually("counting", async () => counted > 2);
    assert.equal(await sandbox.pause(), true);
    assert.equal(await sandbox.pause(), false);
    assert.equal(await stateOf(sandbox.sandboxId), "paused");
    assert.equal(await sandbox.isRunning(), false);
    await assert.rejects(
      sandbox.commands.run("true"),
      (error) => error instanceof TimeoutError || error instanceof SandboxNotFoundError,
    );
    const paused = Sandbox.list({ query: { state: ["paused"] } });
    const listed = (await paused.nextItems()).map(({ sandboxId, metadata }) => [sandboxId, metadata["kept"]]);
    assert.deepEqual(listed, [[sandbox.sandboxId, "yes"]]);
    await assert.rejects(sandbox.setTimeout(60_000), SandboxNotFoundError);
    // Longer than a kernel may be silent: a paused one is not taken for dead.
    await delay((MOST_MISSES + 2) * HEARTBEAT_MS);

    const countedBefore = counted;
    const again = await CodeSandbox.connect(sandbox.sandboxId, { timeoutMs: 60_000 });
    assert.equal(again.sandboxId, sandbox.sandboxId);
    assert.equal(await again.isRunning(), true);
    assert.equal((await again.runCode("x")).text, "42");
    assert.equal(await again.files.read("/tmp/note"), "kept");
    await eventually("the stream that was open goes on", async () => counted > countedBefore + 2);
    await counter.kill();
    await again.kill();
  });

  it("without memory it keeps files alone, and the sandbox begins anew", async () => {
    const sandbox = await CodeSandbox.create({ metadata: { kept: "yes" }, envs: { KEPT: "too" } });
    const context = await sandbox.createCodeContext();
    await sandbox.runCode("x = 42", { context });
    await sandbox.files.write("note", "kept");
    const running = await sandbox.commands.run("sleep 300", { background: true, timeoutMs: 0 });
    const ended = assert.rejects(running.wait());
    assert.equal(await sandbox.pause({ keepMemory: false }), true);
    await ended;
    assert.equal(await sandbox.pause({ keepMemory: false }), false);
    assert.equal(await stateOf(sandbox.sandboxId), "paused");
    assert.equal(await sandbox.isRunning(), false);

    const again = await CodeSandbox.connect(sandbox.sandboxId, { timeoutMs: 60_000 });
    assert.deepEqual((await again.getInfo()).metadata, { kept: "yes" });
    assert.equal(await again.files.read("note"), "kept");
    assert.deepEqual(await again.commands.list(), []);
    const { stdout } = await again.commands.run("echo $KEPT; pgrep -f 'sleep 30[0]' || echo gone");
    assert.equal(stdout, "too\ngone\n");
    // The SDK forgets the timer of a request that is refused, which would hold this process for a minute.
    await assert.rejects(again.runCode("x", { context, requestTimeoutMs: 0 }), /not found/);
    assert.equal((await again.runCode("x")).error?.name, "NameError");
    assert.equal((await sandbox.runCode("6 * 7")).text, "42", "the token is another one");

    await sandbox.runCode("x = 42");
    await sandbox.pause();
    await CodeSandbox.connect(sandbox.sandboxId, { onResume: "reboot" });
    assert.equal((await sandbox.runCode("x")).error?.name, "NameError");
    assert.equal(await sandbox.files.read("note"), "kept");
    await sandbox.kill();
  });

  it("comes without memory at the end of its time when it was created so", async () => {
    const onTimeout = { action: "pause", keepMemory: false } as const;
    const sandbox = await Sandbox.create({ timeoutMs: 1_000, lifecycle: { onTimeout } });
    await sandbox.commands.run("echo kept > note; sleep 300 > /dev/null 2>&1 &");
    await eventually("the pause", async () => (await stateOf(sandbox.sandboxId)) === "paused");
    await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 60_000 });
    const { stdout } = await sandbox.commands.run("cat note; pgrep sleep || echo gone");
    assert.equal(stdout, "kept\ngone\n");
    await sandbox.kill();
  });

  it("comes at the end of its time when it was created so", async () => {
    const sandbox = await Sandbox.create({ timeoutMs: 1_000, lifecycle: { onTimeout: "pause" } });
    assert.deepEqual((await sandbox.getInfo()).lifecycle, { autoResume: false, onTimeout: "pause" });
    await eventually("the pause", async () => (await stateOf(sandbox.sandboxId)) === "paused");
    await assert.rejects(sandbox.files.list("/"));
    assert.equal(await stateOf(sandbox.sandboxId), "paused");
    assert.equal(await sandbox.kill(), true);
    await assert.rejects(Sandbox.connect(sandbox.sandboxId), SandboxNotFoundError);
  });

  it("ends by itself with the next request when it was created so, the question whether it runs included", async () => {
    const sandbox = await Sandbox.create({
      timeoutMs: 1_000,
      lifecycle: { onTimeout: "pause", autoResume: true },
    });
    await sandbox.commands.run(
      "echo kept > /tmp/note; (cd /tmp; python3 -m http.server 8000 >/dev/null 2>&1 &)",
    );
    await eventually("the pause", async () => (await stateOf(sandbox.sandboxId)) === "paused");
    const { status } = await fetch(`${server.url}/health`, {
      headers: { "e2b-sandbox-id": sandbox.sandboxId, "e2b-sandbox-port": "49983" },
    });
    assert.deepEqual([status, await stateOf(sandbox.sandboxId)], [403, "paused"], "not for a stranger");
    assert.equal(await sandbox.isRunning(), true);
    assert.equal(await stateOf(sandbox.sandboxId), "running");
    await sandbox.pause();
    assert.equal((await sandbox.commands.run("cat /tmp/note")).stdout, "kept\n");
    const { state, endAt } = await sandbox.getInfo();
    assert.equal(state, "running");
    assert.ok(endAt.getTime() - Date.now() > 290_000, "five minutes at least");
    await sandbox.pause();
    const answer = await fetch(`${server.url}/note`, {
      headers: { "e2b-sandbox-id": sandbox.sandboxId, "e2b-sandbox-port": "8000" },
    });
    assert.deepEqual([answer.status, await answer.text()], [200, "kept\n"]);
    await sandbox.pause({ keepMemory: false });
    const { status: refused } = await fetch(`${server.url}/note`, {
      headers: { "e2b-sandbox-id": sandbox.sandboxId, "e2b-sandbox-port": "8000" },
    });
    assert.deepEqual([refused, await stateOf(sandbox.sandboxId)], [502, "paused"], "its program is gone");
    await sandbox.kill();
  });

  it("is undone by the older route once, and refused by it for what runs", async () => {
    const sandbox = await Sandbox.create();
    const resume = () =>
      fetch(`${server.url}/sandboxes/${sandbox.sandboxId}/resume`, {
        method: "POST",
        headers: { "x-api-key": API_KEY },
      });
    assert.equal((await resume()).status, 409);
    await sandbox.pause();
    const resumed = await resume();
    assert.equal(resumed.status, 201);
    assert.equal(((await resumed.json()) as { sandboxID: string }).sandboxID, sandbox.sandboxId);
    assert.equal((await sandbox.commands.run("echo on")).stdout, "on\n");
    await sandbox.kill();
  });
});
