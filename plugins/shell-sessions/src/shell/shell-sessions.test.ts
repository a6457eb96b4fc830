import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { Clock, definePlugin, type LiveSandbox, Spool } from "@coppice/core";
import { startTestServer, type TestServer } from "@coppice/core/testing";
import commandsPlugin, { Commands } from "@coppice/plugin-commands";
import localProcess from "@coppice/plugin-local-process";
import type { BytePieces } from "./output-collector.js";
import { ShellError } from "./shell-error.js";
import { shellSessionsConfig } from "../shell-sessions-config.js";
import type { SandboxSessions } from "./session.js";
import { SHELL_LABEL } from "./shell.js";
import { ShellSessions } from "./shell-sessions.js";

const text = async (pieces: BytePieces): Promise<string> => (await pieces.join()).toString();

describe("sessions of shells", { timeout: 180_000 }, () => {
  let server: TestServer;
  let sandbox: LiveSandbox;
  let commands: Commands;
  let shells: ShellSessions;
  let narrow: ShellSessions;
  let sessions: SandboxSessions;
  let spool: Spool;
  let made = 0;

  before(async () => {
    const probe = definePlugin({
      name: "probe",
      requires: { commands: Commands, clock: Clock },
      setup(probing, services) {
        ({ commands } = services);
        const config = shellSessionsConfig.parse({
          killGrace: "2s",
          maxOutput: "1MiB",
          workdir: "/nowhere/at/all",
        });
        spool = new Spool({ directory: () => probing.dataDir(), maxBytes: config.maxSpool });
        shells = new ShellSessions({ config, spool, ...services });
        narrow = new ShellSessions({
          config: { ...config, maxSessions: 1, maxWaiting: 1 },
          spool,
          ...services,
        });
      },
    });
    server = await startTestServer({
      plugins: [
        [commandsPlugin, {}],
        [localProcess, {}],
        [probe, {}],
      ],
    });
    sandbox = await server.sandboxes.create({ template: "base", timeoutMs: 180_000, secure: false });
    sessions = await shells.of(sandbox);
  });
  after(async () => {
    await shells.close();
    await server.stop();
  });

  const fresh = () => sessions.get(`session ${(made += 1)}`);
  const outputOf = async (session: ReturnType<typeof fresh>, command: string): Promise<string> => {
    const { stdout, stderr, exitCode } = await session.exec({ command });
    assert.equal(exitCode, 0, await text(stderr));
    return await text(stdout);
  };

  it("a session keeps directory, variables, functions, aliases and options", async () => {
    const session = fresh();
    await outputOf(
      session,
      "cd /usr; plain=1; export shown=2; f() { echo f $1; }; alias ll='ls'; set -o pipefail",
    );
    assert.equal(session.cwd, "/usr");
    const inside = fresh();
    await outputOf(inside, "mkdir ~/inner; cd ~/inner");
    assert.equal(inside.cwd, "/home/user/inner");
    const told = await outputOf(
      session,
      "pwd; echo $plain; sh -c 'echo $shown'; f 3; alias ll; shopt -po pipefail",
    );
    assert.equal(told, "/usr\n1\n2\nf 3\nalias ll='ls'\nset -o pipefail\n");
  });

  it("output comes as bytes, each stream by itself, with the exit code", async () => {
    const session = fresh();
    const { stdout, stderr, exitCode, truncated } = await session.exec({
      command: String.raw`printf 'a\0\377\036b'; echo e >&2; exit_code() { return 7; }; exit_code`,
    });
    assert.deepEqual([...(await stdout.join())], [0x61, 0, 0xff, 0x1e, 0x62]);
    assert.equal(await text(stderr), "e\n");
    assert.equal(exitCode, 7);
    assert.equal(truncated, false);
    const large = await session.exec({ command: "head -c 3000000 /dev/zero; echo more >&2" });
    assert.equal((await large.stdout.join()).length, 1024 * 1024);
    assert.equal(await text(large.stderr), "more\n");
    assert.equal(large.truncated, true);
  });

  it("the output of a command that ends its shell is not left on the disk", async (context) => {
    const files: Awaited<ReturnType<Spool["open"]>>[] = [];
    const open = spool.open.bind(spool);
    context.mock.method(spool, "open", async (owner?: string) => {
      const file = await open(owner);
      files.push(file);
      return file;
    });
    const command = "head -c 3000000 /dev/zero; kill -KILL $$";
    await assert.rejects(fresh().exec({ command }), { code: "SESSION_TERMINATED" });
    const [file] = files;
    assert.ok(file);
    await assert.rejects(file.write(Buffer.from("more")), "it is open");
  });

  it("nothing keeps the output of commands that have ended", async () => {
    setFlagsFromString("--expose-gc");
    const collectGarbage = runInNewContext("gc") as () => void;
    const session = fresh();
    const kept = async (): Promise<number> => {
      // The log and the subscribers of the last commands let go of theirs a moment later.
      await delay(500);
      collectGarbage();
      return process.memoryUsage().arrayBuffers;
    };
    await session.exec({ command: "head -c 1000000 /dev/zero" });
    const before = await kept();
    for (let round = 0; round < 24; round++) await session.exec({ command: "head -c 1000000 /dev/zero" });
    let grownMiB = Infinity;
    for (let tries = 0; grownMiB >= 8 && tries < 20; tries++) grownMiB = ((await kept()) - before) / 2 ** 20;
    assert.ok(grownMiB < 8, `24 commands of 1 MB each left ${grownMiB.toFixed()} MiB`);
  });

  it("variables and the directory of one command are taken back after it", async () => {
    const session = fresh();
    await outputOf(session, "cd /usr; kept='old value'; export other=\"it's\"");
    const env = { kept: "new\n'value'", other: "2", added: "$x" };
    const { stdout } = await session.exec({
      command: "sh -c 'echo \"$kept|$other|$added\"'; pwd; cd /",
      env,
      cwd: "/bin",
    });
    assert.equal(await text(stdout), "new\n'value'|2|$x\n/bin\n");
    assert.equal(
      await outputOf(session, 'echo "$kept|$other|${added-gone}"; pwd'),
      "old value|it's|gone\n/usr\n",
    );
    const missing = await session.exec({ command: "echo never", cwd: "missing" });
    assert.equal(missing.exitCode, 1);
    assert.equal((await missing.stdout.join()).length, 0);
    assert.equal(await text(missing.stderr), "Failed to change directory to '/usr/missing'\n");
    await assert.rejects(session.exec({ command: "true", env: { "A-B": "1" } }), {
      code: "COMMAND_EXECUTION_ERROR",
    });
    await assert.rejects(session.exec({ command: "a\0b" }), { code: "VALIDATION_FAILED" });
  });

  const survived: readonly [string, number][] = [
    ["echo 'no end", 2],
    ["cat <<EOF\nno end", 0],
    ["if then", 2],
    ["}; echo x; {", 2],
    ["))", 2],
    ["break 9; continue", 0],
    ["read line; cat; true", 0],
    ["(exit 3)", 3],
    ["sleep 60 & echo started", 0],
    ["exec >/dev/null 2>&1 </dev/null", 0],
    ["exec 11>&- 12>&-", 0],
    ["printf() { :; }; read() { :; }; eval() { :; }", 0],
    ["shopt -s expand_aliases; alias builtin=false eval=false __coppice_end=false", 0],
    ["IFS=0123456789abcdef; PATH=/nowhere", 0],
    ["set -x; set -v; set -f", 0],
    ["set -o posix; set -u", 0],
    ["trap 'echo trapped' DEBUG ERR EXIT; false; true", 0],
    [`: ${"x".repeat(1_000_000)}`, 0],
    ["", 0],
  ];
  for (const [command, exitCode] of survived) {
    it(`the shell survives ${JSON.stringify(command.slice(0, 60))}`, async () => {
      const session = fresh();
      await outputOf(session, "mark=here");
      assert.equal((await session.exec({ command })).exitCode, exitCode);
      const { stdout } = await session.exec({ command: 'echo "$mark"' });
      assert.match(await text(stdout), /here/);
    });
  }

  const ended: readonly [string, number][] = [
    ["exit 42", 42],
    ["set -e; false", 1],
    ["exec sh -c 'exit 5'", 5],
    ["kill -9 $$", 137],
    ["set -n", 2],
    ["builtin() { :; }", 2],
    ['for fd in {0..20}; do eval "exec $fd>&-"; done', 2],
    ["sleep 60 & exit 4", 4],
  ];
  for (const [command, exitCode] of ended) {
    it(`a shell that ends by ${JSON.stringify(command)} is told once, and followed by another`, async () => {
      const session = fresh();
      const startedAt = Date.now();
      await assert.rejects(session.exec({ command }), (error) => {
        assert.ok(error instanceof ShellError);
        assert.equal(error.code, "SESSION_TERMINATED");
        assert.deepEqual(error.context, { sessionId: session.id, exitCode });
        return true;
      });
      assert.ok(Date.now() - startedAt < 10_000);
      assert.equal(await outputOf(session, "echo again"), "again\n");
    });
  }

  for (const command of [
    "sleep 60",
    "while true; do sleep 0.05; done",
    "while :; do :; done",
    "trap '' TERM; sleep 60 | cat",
  ]) {
    it(`a time-out stops ${JSON.stringify(command)}, and the session goes on in its state`, async () => {
      const session = fresh();
      await outputOf(session, "cd /usr; kept=1; f() { echo f; }; ro='a b'; readonly ro; arr=(1 'x y')");
      await assert.rejects(session.exec({ command: `echo partial; ${command}`, timeoutMs: 200 }), (error) => {
        assert.ok(error instanceof ShellError);
        assert.equal(error.code, "COMMAND_EXECUTION_ERROR");
        assert.match(
          error.message,
          /^Failed to execute command '.*' in session '.*': Command timeout after 200ms$/s,
        );
        return true;
      });
      assert.equal(
        await outputOf(session, 'pwd; echo $kept; f; echo "$ro ${arr[1]}"'),
        "/usr\n1\nf\na b x y\n",
      );
    });
  }

  it("a time-out keeps all of a state that takes longer to say than the command's processes take to end", async () => {
    const session = fresh();
    await outputOf(session, 'for n in {1..5000}; do declare "v$n=$n"; done; zz=last; f() { echo f; }');
    await assert.rejects(session.exec({ command: "while :; do :; done", timeoutMs: 100 }), {
      code: "COMMAND_EXECUTION_ERROR",
    });
    assert.equal(await outputOf(session, "echo $v5000 $zz; f"), "5000 last\nf\n");
  });

  it("a shell that does not come back after a time-out is ended, and the next call is told", async () => {
    const session = fresh();
    await assert.rejects(session.exec({ command: "trap '' USR1; while :; do :; done", timeoutMs: 100 }), {
      code: "COMMAND_EXECUTION_ERROR",
    });
    await assert.rejects(session.exec({ command: "true" }), { code: "SESSION_TERMINATED" });
    assert.equal(await outputOf(session, "echo again"), "again\n");
  });

  it("calls at the same time are done in their order", async () => {
    const session = fresh();
    await outputOf(session, "count=0");
    const results = await Promise.all(
      Array.from({ length: 30 }, () => outputOf(session, "count=$((count + 1)); echo $count")),
    );
    assert.deepEqual(
      results,
      Array.from({ length: 30 }, (_, index) => `${index + 1}\n`),
    );
  });

  it("shells of an earlier server are ended at the first use of their sandbox, and nothing else is", async () => {
    const { runtime } = sandbox;
    const { name } = await runtime.user();
    const left = async (label: string) => {
      const args = ["-c", "sleep 600"];
      const process = await runtime.spawn({
        path: "sh",
        args,
        env: {},
        cwd: "/",
        user: name,
        input: "pipe",
        label,
      });
      return Object.assign(process, { label });
    };
    const [shell, other] = [await left(SHELL_LABEL), await left("another plugin's")];
    const { ended } = sandbox;
    const adopted: LiveSandbox = Object.create(sandbox, {
      ended: { value: ended },
      runtime: { value: runtime },
      adopted: { value: async () => [shell, other] },
    });
    await shells.of(adopted);
    const ending = await Promise.race([shell.exit, delay(5_000, undefined, { ref: false })]);
    assert.equal(ending?.signal, "SIGKILL");
    assert.equal(await Promise.race([other.exit, delay(200, "runs")]), "runs");
    await other.kill("SIGKILL", "group");
    await other.exit;
  });

  it("sessions of a sandbox that has ended are forgotten", async () => {
    const ending = await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
    const before = await shells.of(ending);
    await before.get("one").exec({ command: "true" });
    assert.equal(await shells.of(ending), before);
    await server.sandboxes.kill(ending.record.id);
    assert.notEqual(await shells.of(ending).catch(() => undefined), before);
  });

  it("commands are rows of the one table, which can kill them", async () => {
    const session = fresh();
    const running = session.exec({ command: "echo first; sleep 60; echo after" });
    await delay(300);
    const [row] = commands.list(sandbox).filter(({ request }) => request.args?.[1]?.startsWith("echo first"));
    assert.ok(row);
    await row.kill("SIGKILL");
    const { stdout, exitCode } = await running;
    assert.equal(await text(stdout), "first\n");
    assert.equal(exitCode, 137);
    assert.equal((await row.ended).outcome, "killed");
    assert.equal(await outputOf(session, "echo again"), "again\n");
  });

  it("sessions are listed, deleted, and made once", async () => {
    const session = sessions.create("one", { env: { A: "it's" }, cwd: "/tmp" });
    assert.match(await outputOf(session, "echo $A; pwd"), /^it's\n\S*\/tmp\n$/);
    assert.throws(() => sessions.create("one", {}), { code: "SESSION_ALREADY_EXISTS" });
    assert.ok(sessions.ids().includes("one"));
    const running = session.exec({ command: "sleep 0.3; echo done" });
    await delay(50);
    const deleted = sessions.delete("one");
    assert.equal(await text((await running).stdout), "done\n");
    assert.equal(await deleted, true);
    assert.equal(await sessions.delete("one"), false);
    await assert.rejects(session.exec({ command: "true" }), { code: "SESSION_DESTROYED" });
  });

  it("sessions count until their last command has ended, also those deleted with a full queue", async () => {
    const few = await narrow.of(sandbox);
    const session = few.get("a");
    const running = session.exec({ command: 'until [ -e "$HOME/over" ]; do sleep 0.05; done' });
    const waiting = assert.rejects(session.exec({ command: "true" }), { code: "SESSION_DESTROYED" });
    await assert.rejects(session.exec({ command: "true" }), { code: "RESOURCE_BUSY" });
    const deleted = few.delete("a");
    assert.deepEqual(few.ids(), []);
    assert.throws(() => few.get("b"), { code: "RESOURCE_BUSY" });
    const { stdout } = await sessions.get("other").exec({ command: 'touch "$HOME/over"; echo done' });
    assert.equal(await text(stdout), "done\n");
    await running;
    await waiting;
    assert.equal(await deleted, true);
    assert.equal((await few.get("b").exec({ command: "true" })).exitCode, 0);
    await narrow.close();
  });
});
