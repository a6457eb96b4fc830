import assert from "node:assert/strict";
import { it } from "node:test";
import { type Sandboxes, Snapshots } from "@coppice/core";
import type { ScriptedProcess } from "@coppice/core/testing";
import { Commands } from "@coppice/plugin-commands";
import { templatesServer, type TemplatesServer } from "../testing/templates-server.js";
import type { StartCommand } from "../model/layer.js";

const START: StartCommand = {
  command: "serve",
  ready: undefined,
  user: "user",
  workdir: "/tmp",
  environment: { FROM_TEMPLATE: "1", BOTH: "template" },
  ports: [],
};
const SETTINGS = { readyInterval: "1ms", startTimeout: "10s", longestSleep: "10ms" };

type Bash = (process: ScriptedProcess) => number | void | Promise<number | void>;

/** A process that runs until it is killed. */
function forever({ killed }: ScriptedProcess): Promise<void> {
  return new Promise((resolve) => killed.addEventListener("abort", () => resolve()));
}

/** A server with a ready template `web`; `bash` runs the lines of its start and ready commands. */
async function serverWith(
  start: Partial<StartCommand>,
  bash: Bash,
  more: { readonly settings?: object; readonly pools?: boolean } = {},
): Promise<TemplatesServer> {
  const server = await templatesServer({
    settings: { ...SETTINGS, ...more.settings },
    memory: { programs: { bash }, snapshots: {}, stopping: {} },
  });
  server.builder.script = async (request, surroundings) => ({
    ...(await server.builder.make(request, surroundings)),
    start: { ...START, ...start },
  });
  const built = await server.ended(await server.build("web"));
  assert.equal(built.status, "ready");
  return server;
}

function create(sandboxes: Sandboxes, environment: Readonly<Record<string, string>> = {}) {
  return sandboxes.create({ template: "web", timeoutMs: 9e4, secure: false, environment });
}

it("the start command runs in its context in every new sandbox, and is listed and logged", async () => {
  const seen: ScriptedProcess[] = [];
  await using server = await serverWith({}, async (process) => {
    seen.push(process);
    await process.stdout("serving\n");
    await forever(process);
  });
  const sandbox = await create(server.sandboxes, { BOTH: "creator", MINE: "2" });
  const [process] = seen;
  assert.deepEqual(process?.args, ["-l", "-c", "serve"]);
  assert.deepEqual([process?.cwd, process?.user.name], ["/tmp", "user"]);
  const { FROM_TEMPLATE, BOTH, MINE } = process?.env ?? {};
  assert.deepEqual([FROM_TEMPLATE, BOTH, MINE], ["1", "creator", "2"]);
  const commands = server.resolve(Commands);
  assert.deepEqual(
    commands.list(sandbox).map(({ pid, end }) => [pid, end]),
    [[process?.pid, undefined]],
  );
  const snapshots = server.resolve(Snapshots).of("default");
  const forked = await snapshots.fork(sandbox.record.id, { count: 1, timeoutMs: 9e4 });
  assert.ok(forked[0] !== undefined && "sandbox" in forked[0]);
  assert.equal(seen.length, 2);
  await server.sandboxes.pause(sandbox.record.id, { keepsMemory: false });
  await server.sandboxes.resume(sandbox.record.id, 9e4);
  assert.equal(seen.length, 3);
  assert.equal(commands.list(server.sandboxes.get(sandbox.record.id)).length, 1);
});

it("a creation is answered when the ready command has succeeded, in the same context", async () => {
  let attempts = 0;
  let isServing = false;
  await using server = await serverWith({ ready: "check" }, async (process) => {
    if (process.args[2] === "serve") {
      isServing = true;
      return forever(process);
    }
    assert.ok(isServing);
    assert.deepEqual([process.args[2], process.cwd, process.env["FROM_TEMPLATE"]], ["check", "/tmp", "1"]);
    await process.stdout("x".repeat(200_000));
    attempts += 1;
    return attempts < 3 ? 1 : 0;
  });
  const sandbox = await create(server.sandboxes);
  assert.equal(attempts, 3);
  assert.equal(server.resolve(Commands).list(sandbox).length, 1, "attempts are not listed");
});

it("a start command that ends well is fine; one that fails costs the sandbox, and the answer has its stderr", async () => {
  let code = 0;
  await using server = await serverWith({ ready: "check" }, async ({ args, stderr }) => {
    if (args[2] === "check") return code === 0 ? 0 : 1;
    await stderr(`${"noise ".repeat(1000)}the port is taken\n`);
    return code;
  });
  await create(server.sandboxes);
  code = 3;
  const answer = await server.ask<{ readonly code: number; readonly message: string }>("POST /v2/sandboxes", {
    templateID: "web",
  });
  assert.deepEqual([answer.status, answer.json.code], [500, 500]);
  assert.match(
    answer.json.message,
    /^start command failed: error running start command: exit status 3: [\s\S]*noise the port is taken$/,
  );
  assert.ok(answer.json.message.length < 2200);
  assert.equal(server.sandboxes.list().length, 1);
  assert.equal(server.backend.backend.sandboxes.size, 1);
});

it("a start command that is not ready in time costs the sandbox, and a hanging ready command ends", async () => {
  let hanging = 0;
  await using server = await serverWith(
    { ready: "check" },
    async (process) => {
      if (process.args[2] === "check") hanging += 1;
      await forever(process);
      if (process.args[2] === "check") hanging -= 1;
    },
    { settings: { startTimeout: "50ms" } },
  );
  await assert.rejects(create(server.sandboxes), {
    message: "start command failed: it was not ready within 0.05 s",
  });
  assert.deepEqual([hanging, server.backend.backend.sandboxes.size], [0, 0]);
});

it("a ready command that only sleeps waits for the ports of the build, or for a short time", async () => {
  let port = 0;
  const bash: Bash = async (process) => {
    const made = [...server.backend.backend.sandboxes.values()].at(-1);
    setTimeout(() => made?.listen(port, (socket) => socket.end()), 20);
    await forever(process);
  };
  let server = await serverWith({ ready: "sleep 20", ports: [3000] }, bash);
  port = 3000;
  const waited = await create(server.sandboxes);
  await waited.runtime.dial(3000, new AbortController().signal);
  await server.stop();
  server = await serverWith({ ready: " sleep 600s ", ports: [] }, bash);
  await create(server.sandboxes);
  await server.stop();
  port = 4000;
  server = await serverWith({ ready: "sleep 0.05", ports: [3000] }, bash);
  await create(server.sandboxes);
  await server.stop();
});

it("a creator that leaves ends the start command with the sandbox", async () => {
  const started = Promise.withResolvers<void>();
  let isRunning = false;
  await using server = await serverWith({ ready: "false" }, async (process) => {
    if (process.args[2] === "false") return 1;
    isRunning = true;
    started.resolve();
    await forever(process);
    isRunning = false;
  });
  const leaving = new AbortController();
  const made = server.sandboxes.create({ template: "web", timeoutMs: 9e4, secure: false }, leaving.signal);
  await started.promise;
  leaving.abort();
  await assert.rejects(made, /canceled/);
  assert.deepEqual([isRunning, server.backend.backend.sandboxes.size], [false, 0]);
});

it("a paused sandbox whose start command fails stays paused, with its files", async () => {
  let code: number | undefined;
  await using server = await serverWith({ ready: "check" }, async (process) => {
    if (process.args[2] === "check") return code ?? 0;
    if (code !== undefined) {
      await process.stderr("no more\n");
      return code;
    }
    await forever(process);
  });
  const { record } = await create(server.sandboxes);
  await server.sandboxes.pause(record.id, { keepsMemory: false });
  code = 1;
  await assert.rejects(
    server.sandboxes.resume(record.id, 9e4),
    /could not be resumed: start command failed: .*no more/,
  );
  assert.equal(server.sandboxes.get(record.id).record.state, "paused");
  code = undefined;
  await server.sandboxes.resume(record.id, 9e4);
  assert.equal(server.sandboxes.get(record.id).record.state, "running");
});
