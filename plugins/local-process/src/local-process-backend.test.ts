import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { chmod, mkdir, mkdtemp, readdir, rename, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { afterEach, beforeEach, it } from "node:test";
import { agentBinary } from "@coppice/agent";
import type { Sandbox } from "@coppice/core/backend";
import { eventually } from "@coppice/core/testing";
import { findProcesses } from "./processes/host-processes.js";
import { LocalProcessBackend } from "./local-process-backend.js";
import { childrenOf, isRunning } from "./testing/processes.js";
import { silentLog } from "./testing/silent-log.js";

const SETTINGS = { writeInPlaceLimit: 262_144, diskScanEntries: 1_000 };
const PATH = process.env["PATH"] ?? "/usr/bin:/bin";
const asRoot = process.getuid?.() === 0 && "root may enter everything";

/** Host paths of sandbox trees, by id. */
const roots = new Map<string, string>();

let directory: string;
let backend: LocalProcessBackend;

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "coppice-recover-"));
  backend = new LocalProcessBackend({ directory, ...SETTINGS }, silentLog);
  await backend.check();
});

afterEach(async () => {
  await backend.close();
  await rm(directory, { recursive: true });
});

it("the processes of a killed server end with it, and its files are removed at the next start", async () => {
  const other = await startServer();
  await kill(other.process);
  // The Node process ends only process groups; a process that left its group is ended at the next start.
  const left = agentBinary() === undefined ? 1 : 0;
  await eventually("its agent ends what it started", async () => {
    return (await findProcesses(other.root)).length === left;
  });
  assert.deepEqual(await backend.recover(), []);
  assert.deepEqual(await readdir(directory), []);
});

it("processes that outlive a server and its agent end at the next start, which leaves a live server alone", async () => {
  const other = await startServer();
  const agents = await childrenOf(other.process.pid ?? 0);
  try {
    assert.ok((await findProcesses(other.root)).length >= 2, "the sandbox of the other server runs");
    assert.deepEqual(await backend.recover(), []);
    assert.ok((await findProcesses(other.root)).length >= 2, "it lost its processes to a live server");
    assert.equal((await sandboxDirectories()).length, 1, "it lost its files to a live server");
  } finally {
    // Stops the agent, so that it cannot clean up.
    for (const pid of agents) process.kill(pid, "SIGSTOP");
    await kill(other.process);
    for (const pid of agents) process.kill(pid, "SIGKILL");
  }
  assert.ok((await findProcesses(other.root)).length >= 2, "nothing outlived it: this test has no case");
  assert.deepEqual(await backend.recover(), []);
  assert.deepEqual(await findProcesses(other.root), []);
  assert.deepEqual(await readdir(directory), []);
});

for (const kind of agentBinary() === undefined ? ["node"] : [undefined, "node"]) {
  it(`when the ${kind ?? "agent"} process dies, running processes are ended and reported, and the next command runs`, async () => {
    const own = new LocalProcessBackend({ directory, ...SETTINGS, agentBinary: kind }, silentLog);
    try {
      const [one, two] = await Promise.all([provision("one", own), provision("two", own)]);
      const script = "trap '' TERM HUP; env -i setsid sleep 300 & sleep 300 & echo up; wait";
      const commands = await Promise.all([one, two].map((sandbox) => start(sandbox, script)));
      for (const { output } of commands) await output.next();
      const ran = (await Promise.all([one, two].map(({ id }) => findProcesses(rootOf(id))))).flat();
      assert.ok(ran.length >= 6, `too little runs: ${ran.length}`);
      const agents = await agentsOf(process.pid, ran);
      assert.equal(agents.length, 1, "not one process starts all others");
      process.kill(agents[0] ?? 0, "SIGKILL");
      for (const { process: command, output } of commands) {
        assert.deepEqual(await command.exit, { signal: "SIGKILL" });
        assert.equal((await output.next()).done, true, "its output goes on");
        await assert.rejects(command.kill("SIGTERM"), { code: "not_found" });
        await assert.rejects(command.write(Buffer.from("x")), { code: "unavailable" });
      }
      for (const pid of ran) assert.ok(!(await isRunning(pid)), `${pid} runs, although its end was reported`);
      const next = await start(one, "echo again");
      assert.equal(Buffer.from((await next.output.next()).value?.data ?? []).toString(), "again\n");
      assert.deepEqual(await next.process.exit, { code: 0 });
      await Promise.all([one.destroy(), two.destroy()]);
    } finally {
      await own.close();
    }
    assert.deepEqual(await readdir(directory), []);
  });
}

it("an agent that cannot be started makes the host unusable until the next check", async () => {
  const program = join(directory, "agent");
  const own = new LocalProcessBackend({ directory, ...SETTINGS, agentBinary: program }, silentLog);
  await assert.rejects(own.check(), {
    code: "failed_precondition",
    message: /^local-process cannot use this host: cannot start the agent: .*ENOENT/,
  });
  await assert.rejects(own.agent.start(), { code: "unavailable", message: /ENOENT/ });
  await writeFile(program, "#!/bin/sh\nexit 0\n", { mode: 0o755 });
  await assert.rejects(own.check(), /the agent is gone/);
  await symlink(agentBinary() ?? process.execPath, `${program}.link`);
  await rename(`${program}.link`, program);
  if (agentBinary() !== undefined) await own.check();
  await own.close();
});

it("a closed backend has ended all processes, and refuses commands with a reason", async () => {
  const own = new LocalProcessBackend({ directory, ...SETTINGS }, silentLog);
  const sandbox = await provision("closed", own);
  const command = await start(sandbox, "echo up; sleep 300");
  await command.output.next();
  await own.close();
  assert.deepEqual(await command.process.exit, { signal: "SIGKILL" });
  assert.deepEqual(await findProcesses(rootOf("closed")), []);
  await assert.rejects(start(sandbox, "true"), { code: "unavailable", message: "the server is stopping" });
  await sandbox.destroy();
});

it("without the agent's program a command that wants a terminal is refused", async () => {
  const own = new LocalProcessBackend({ directory, ...SETTINGS, agentBinary: "node" }, silentLog);
  const sandbox = await provision("plain", own);
  const terminal = { columns: 80, rows: 24 };
  await assert.rejects(sandbox.spawn({ path: "sh", args: [], env: { PATH }, terminal }), {
    code: "failed_precondition",
    message: /there are no terminals here/,
  });
  await sandbox.destroy();
  await own.close();
});

/** There a program is started in a directory by its path alone, which may lead elsewhere by then. */
const byPath = process.platform !== "linux" && "a directory has no other name than its path";

it("a working directory is the requested one, even while it is replaced", { skip: byPath }, async () => {
  const sandbox = await provision("swapped");
  await sandbox.files.makeDir("/home/user/here");
  await sandbox.files.write("/home/user/here/inside", source("inside"));
  const home = `${rootOf("swapped")}/home/user`;
  const swap = `cd ${home}; while :; do mv here there; ln -s /etc here; rm here; mv there here; done`;
  const swapper = await start(sandbox, swap);
  let found = 0;
  // On a busy machine the swapper may wait for longer than 200 rounds take.
  for (let round = 0; round < 200 || (found === 0 && round < 20_000); round++) {
    try {
      const { process: started, output } = await start(sandbox, "pwd; ls", "/home/user/here");
      const text = Buffer.from((await output.next()).value?.data ?? []).toString();
      assert.match(text, /\/home\/user\/t?here\n/, "it runs outside of the sandbox");
      await output.return?.();
      assert.deepEqual(await started.exit, { code: 0 });
      found++;
    } catch (error) {
      if (error instanceof assert.AssertionError) throw error;
      assert.equal((error as Error).message, "cwd '/home/user/here' does not exist");
    }
  }
  assert.ok(found > 0, "the directory was never there: this test has no case");
  await swapper.process.kill("SIGKILL");
  await sandbox.destroy();
});

it(
  "a working directory that cannot be entered is reported by the requested path",
  { skip: asRoot },
  async () => {
    const sandbox = await provision("locked");
    await sandbox.files.makeDir("/home/user/locked");
    await chmod(`${rootOf("locked")}/home/user/locked`, 0);
    await assert.rejects(start(sandbox, "true", "/home/user/locked"), {
      code: "permission_denied",
      message: "cannot enter cwd '/home/user/locked': EACCES",
    });
    await sandbox.destroy();
  },
);

it("directories that only resemble those of a server are left alone", async () => {
  const names = ["coppice-x", "coppice-x-0000.1.00000000-abcdef", "unrelated"];
  for (const name of names) await mkdir(join(directory, name));
  await backend.recover();
  const left = await readdir(directory);
  // The second name has the form that a server on another host gives its directories.
  for (const name of names) assert.ok(left.includes(name), `${name} is gone`);
});

it("a sandbox cannot name files of another one by their host path", async () => {
  const [one, two] = await Promise.all([provision("one"), provision("two")]);
  await two.files.write("/home/user/secret", source("secret"));
  const path = `${await two.files.hostPath?.("/home/user")}/secret`;
  await two.files.stat(path);
  await assert.rejects(one.files.stat(path), { code: "not_found" });
  await Promise.all([one.destroy(), two.destroy()]);
});

it("a process that cleared its environment ends with its sandbox", async () => {
  const sandbox = await provision("cleared");
  const started = await sandbox.spawn({
    path: "sh",
    args: ["-c", "env -i setsid sleep 300 > /dev/null 2>&1 & echo $!"],
    env: { PATH },
  });
  const pieces = await Array.fromAsync(started.output);
  const pid = Number(Buffer.concat(pieces.map((piece) => piece.data)).toString());
  assert.ok(await isRunning(pid), "it runs");
  await sandbox.destroy();
  assert.ok(!(await isRunning(pid)), "it still runs");
});

it("a program that opens /dev/stdin after stdin was closed reads all of it, and its end", async () => {
  const sandbox = await provision("late");
  const late = await sandbox.spawn({
    path: "sh",
    args: ["-c", "sleep 0.4; cat /dev/stdin; cat /dev/stdin; echo end"],
    env: { PATH },
  });
  await late.write(Buffer.from("early\n"));
  await late.closeInput();
  const pieces = await Array.fromAsync(late.output);
  assert.equal(Buffer.concat(pieces.map((piece) => piece.data)).toString(), "early\nend\n");
  await sandbox.destroy();
});

async function provision(id: string, from: LocalProcessBackend = backend): Promise<Sandbox> {
  const spec = { id, template: "base", limits: {}, allowInternetAccess: true };
  const sandbox = await from.provision(spec, new AbortController().signal);
  roots.set(id, (await sandbox.files.hostPath?.("/")) ?? "");
  return sandbox;
}

function rootOf(id: string): string {
  return roots.get(id) ?? assert.fail(`there is no sandbox ${id}`);
}

async function start(sandbox: Sandbox, script: string, cwd?: string) {
  const command = { path: "sh", args: ["-c", script], env: { PATH }, cwd };
  const started = await sandbox.spawn(command);
  return { process: started, output: started.output[Symbol.asyncIterator]() };
}

async function kill(child: ChildProcess): Promise<void> {
  child.kill("SIGKILL");
  await once(child, "exit");
}

/** Children of a process with children among `descendants`. */
async function agentsOf(parent: number, descendants: readonly number[]): Promise<number[]> {
  const agents: number[] = [];
  for (const pid of await childrenOf(parent)) {
    if ((await childrenOf(pid)).some((child) => descendants.includes(child))) agents.push(pid);
  }
  return agents;
}

async function* source(text: string): AsyncGenerator<Uint8Array> {
  yield Buffer.from(text);
}

async function sandboxDirectories(): Promise<string[]> {
  return (await readdir(directory)).filter((name) => name.startsWith("coppice-other-"));
}

/** Starts another process with a backend on the same directory, and one sandbox with processes. */
async function startServer() {
  const program = `
    import { LocalProcessBackend } from ${JSON.stringify(new URL("local-process-backend.js", import.meta.url).href)};
    const settings = ${JSON.stringify({ directory, ...SETTINGS })};
    const backend = new LocalProcessBackend(settings, { error: console.error });
    const spec = { id: "other", template: "base", limits: {}, allowInternetAccess: true };
    const sandbox = await backend.provision(spec, new AbortController().signal);
    const env = { PATH: ${JSON.stringify(PATH)} };
    const args = ["-c", "setsid sleep 300 & sleep 300 & echo up; wait"];
    const started = await sandbox.spawn({ path: "sh", args, env });
    for await (const _ of started.output) {
      console.log(await sandbox.files.hostPath("/"));
    }
  `;
  const server = spawn(process.execPath, ["--input-type=module", "-e", program], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [root] = (await once(createInterface(server.stdout), "line")) as [string];
  return { process: server, root };
}

it("a sandbox without network is refused", async () => {
  const spec = { id: "offline", template: "base", limits: {}, allowInternetAccess: false };
  await assert.rejects(
    backend.provision(spec, new AbortController().signal),
    /cannot be kept from the internet/,
  );
  assert.deepEqual(await sandboxDirectories(), []);
});
