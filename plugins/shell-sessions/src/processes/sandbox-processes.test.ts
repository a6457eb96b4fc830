import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { Clock, definePlugin, type LiveSandbox, Spool, systemClock } from "@coppice/core";
import { eventually, startTestServer, type TestServer } from "@coppice/core/testing";
import commandsPlugin, { Commands } from "@coppice/plugin-commands";
import localProcess from "@coppice/plugin-local-process";
import type { SandboxSessions } from "../shell/session.js";
import { ShellSessions } from "../shell/shell-sessions.js";
import { shellSessionsConfig } from "../shell-sessions-config.js";
import { SandboxProcesses } from "./sandbox-processes.js";

describe("processes of sessions", { timeout: 120_000 }, () => {
  let server: TestServer;
  let sandbox: LiveSandbox;
  let commands: Commands;
  let shells: ShellSessions;
  let sessions: SandboxSessions;
  let processes: SandboxProcesses;
  let spool: Spool;

  before(async () => {
    // The helper that finds what descends from a process has as long: on a busy machine half a second is too short.
    const config = shellSessionsConfig.parse({ processGrace: "3s", maxOutput: "1KiB" });
    const probe = definePlugin({
      name: "probe",
      requires: { commands: Commands, clock: Clock },
      setup(probing, services) {
        ({ commands } = services);
        spool = new Spool({ directory: () => probing.dataDir(), maxBytes: config.maxSpool });
        shells = new ShellSessions({ config, spool, ...services });
      },
    });
    server = await startTestServer({
      plugins: [
        [commandsPlugin, {}],
        [localProcess, {}],
        [probe, {}],
      ],
    });
    sandbox = await server.sandboxes.create({ template: "base", timeoutMs: 120_000, secure: false });
    sessions = await shells.of(sandbox);
    processes = new SandboxProcesses({ sandbox, commands, config, spool, clock: systemClock });
  });
  after(async () => {
    await shells.close();
    await server.stop();
  });

  const ended = (id: string) =>
    eventually(`the end of '${id}'`, async () => {
      const found = await processes.find(id);
      return found.status !== "running" && found;
    });

  const logged = async (id: string, stream: "stdout" | "stderr"): Promise<string> => {
    await using logs = await processes.logs(id);
    return String(await logs[stream].join());
  };

  it("start in the state of their session, which they do not change, and outlive it", async () => {
    const session = sessions.create("state", { env: { A: "it's" } });
    await session.exec({ command: "cd /usr; plain=1; f() { echo f $1; }; set -o pipefail" });
    const command = `f 2; echo "$A $plain $B"; pwd; set -o | grep pipefail; B=gone; sleep 0.3; echo late; false | true`;
    await processes.start(session, { id: "state", command, env: { B: "b '\n\"$x" } });
    await sessions.delete("state");
    const { status, exitCode, command: text } = await ended("state");
    assert.deepEqual([status, exitCode, text], ["failed", 1, command]);
    const { stdout, stderr } = await processes.logs("state");
    assert.match(String(await stdout.join()), /^f 2\nit's 1 b '\n"\$x\n\/usr\npipefail\s+on\nlate\n$/);
    assert.equal(String(await stderr.join()), "");
  });

  it("say a directory that is missing, and a syntax error", async () => {
    const session = sessions.get("errors");
    await processes.start(session, { id: "cwd", command: "echo never", cwd: "/missing" });
    assert.equal((await ended("cwd")).exitCode, 1);
    assert.equal(await logged("cwd", "stderr"), "Failed to change directory to '/missing'\n");
    await processes.start(session, { id: "syntax", command: "echo 'no end" });
    assert.equal((await ended("syntax")).exitCode, 2);
    await assert.rejects(processes.start(session, { command: " " }), { code: "INVALID_COMMAND" });
    await assert.rejects(processes.find("unknown"), { code: "PROCESS_NOT_FOUND" });
  });

  it("are followed from their first byte to their end, in order", async () => {
    const session = sessions.get("output");
    await processes.start(session, {
      id: "output",
      command: "for i in $(seq 1 300); do echo $i; echo $i >&2; done",
    });
    const texts = { stdout: "", stderr: "", terminal: "" };
    const { output } = await processes.follow("output", new AbortController().signal);
    for await (const { stream, data } of output) {
      texts[stream] += Buffer.from(data).toString();
    }
    const expected = Array.from({ length: 300 }, (_, index) => `${index + 1}\n`).join("");
    assert.deepEqual(texts, { stdout: expected, stderr: expected, terminal: "" });
    const { stdout, truncated } = await processes.logs("output");
    assert.equal(String(await stdout.join()), expected.slice(0, 1024));
    assert.equal(truncated, true);
  });

  it("are killed with all that descend from them, whatever groups these have made", async () => {
    const session = sessions.get("kill");
    const command = "trap '' TERM; setsid sh -c 'echo $$; sleep 60; echo never' & sleep 60; sleep 60";
    const started = await processes.start(session, { id: "kill", command });
    await assert.rejects(processes.start(session, { id: "kill", command: "true" }), {
      code: "RESOURCE_BUSY",
    });
    const inner = await eventually("its number", async () => Number(await logged("kill", "stdout")));
    await processes.kill("kill");
    assert.equal((await started.ended).outcome, "killed");
    assert.deepEqual((await processes.find("kill")).status, "killed");
    // A killed one is there until its new parent has collected it.
    await eventually("it is gone", () => !isThere(inner));
    await assert.rejects(processes.kill("kill"), { code: "COMMAND_NOT_FOUND" });
    await processes.start(session, { id: "kill", command: "exit 3" });
    assert.equal((await ended("kill")).exitCode, 3);
  });

  it("have their output read page by page, each released before the next", async () => {
    await processes.start(undefined, { id: "paged", command: "echo on" });
    await ended("paged");
    const logs = commands.log(sandbox.record.id);
    let held = 0;
    const counted: Partial<typeof logs> = {
      find: (selector) => logs.find(selector),
      async page(...asked) {
        assert.equal(held, 0);
        held += 1;
        return { ...(await logs.page(...asked)), release: () => void (held -= 1) };
      },
    };
    const config = shellSessionsConfig.parse({});
    const table = { log: () => counted } as unknown as Commands;
    const reading = new SandboxProcesses({ sandbox, commands: table, config, spool, clock: systemClock });
    await using output = await reading.logs("paged");
    assert.deepEqual([String(await output.stdout.join()), held], ["on\n", 0]);
  });

  it("have an id once, also when two are asked for at the same time", async () => {
    const session = sessions.get("twins");
    const twins = [1, 2].map(() => processes.start(session, { id: "twin", command: "sleep 60" }));
    const outcomes = await Promise.allSettled(twins);
    assert.deepEqual(outcomes.map(({ status }) => status).toSorted(), ["fulfilled", "rejected"]);
    await processes.kill("twin");
  });

  it("are killed before their next command", async () => {
    await processes.start(sessions.get("kill"), { id: "script", command: "echo on; sleep 60; echo off" });
    await eventually("it runs", () => logged("script", "stdout"));
    await processes.kill("script");
    assert.equal((await ended("script")).exitCode, 143);
    assert.equal(await logged("script", "stdout"), "on\n");
  });

  it("of all surfaces are listed by tag or id, and stopped at their time-out", async () => {
    await commands.start(sandbox, { path: "sleep", args: ["60"], tag: "elsewhere" });
    await processes.start(sessions.get("list"), { id: "slow", command: "sleep 60", timeoutMs: 200 });
    assert.equal((await ended("slow")).exitCode, 137);
    const listed = new Map((await processes.list()).map(({ id, status }) => [id, status]));
    assert.equal(listed.get("elsewhere"), "running");
    assert.equal(listed.get("slow"), "killed");
    assert.equal(await processes.killAll(), 1);
    assert.equal((await processes.find("elsewhere")).status, "killed");
  });
});

function isThere(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}
