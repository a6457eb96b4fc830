import assert from "node:assert/strict";
import { randomInt } from "node:crypto";
import { it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { agentBinary } from "@coppice/agent";
import { eventually } from "@coppice/core/testing";
import { CommandExitError, InvalidArgumentError, type Sandbox, TimeoutError } from "e2b";
import { runningProcesses } from "../../harness/host/running-processes.js";

/** Cases for `sandbox.commands`, for each way in which the SDK reaches the server. Call it inside a `describe`. */
export function commandScenarios(sandbox: () => Sandbox): void {
  it("gives back what a command wrote to stdout and stderr", async () => {
    const written: string[] = [];
    const result = await sandbox().commands.run("echo out; echo wrong >&2; printf 'h\\303\\251\\n'", {
      onStdout: (data) => void written.push(data),
    });
    assert.equal(result.stdout, "out\nhé\n");
    assert.equal(result.stderr, "wrong\n");
    assert.equal(result.exitCode, 0);
    assert.equal(written.join(""), "out\nhé\n");
  });

  it("raises what a command failed with: its exit code and its output", async () => {
    await assert.rejects(sandbox().commands.run("echo partly; echo broken >&2; exit 3"), (error) => {
      assert.ok(error instanceof CommandExitError, String(error));
      assert.equal(error.exitCode, 3);
      assert.equal(error.stdout, "partly\n");
      assert.equal(error.stderr, "broken\n");
      assert.equal(error.error, "exit status 3");
      return true;
    });
  });

  it("takes environment variables as they are, whatever is in them", async () => {
    const value = `"quotes" $HOME \\ 'and' \n a line`;
    const { stdout } = await sandbox().commands.run('printf %s "$ODD"', { envs: { ODD: value } });
    assert.equal(stdout, value);
  });

  it("runs in the directory it is told, and refuses one that is not there", async () => {
    await sandbox().commands.run("mkdir -p inner/deep");
    const { stdout } = await sandbox().commands.run("basename $PWD", { cwd: "inner/deep" });
    assert.equal(stdout, "deep\n");
    await assert.rejects(sandbox().commands.run("true", { cwd: "/does/not/exist" }), (error) => {
      assert.ok(error instanceof InvalidArgumentError, String(error));
      assert.match(error.message, /cwd '\/does\/not\/exist' does not exist/);
      return true;
    });
  });

  it("feeds stdin until it is closed", async () => {
    const handle = await sandbox().commands.run("cat", { background: true, stdin: true });
    await sandbox().commands.sendStdin(handle.pid, "first ");
    await handle.sendStdin("second\n");
    await handle.closeStdin();
    assert.equal((await handle.wait()).stdout, "first second\n");
  });

  it("has no stdin unless it is asked for", async () => {
    assert.equal((await sandbox().commands.run("cat; echo end")).stdout, "end\n");
  });

  it("lists a background command by its real pid, and kills it once", async () => {
    const handle = await sandbox().commands.run("exec sleep 300", { background: true });
    const listed = (await sandbox().commands.list()).find(({ pid }) => pid === handle.pid);
    assert.deepEqual(listed?.args, ["-l", "-c", "exec sleep 300"]);
    await sandbox().commands.run(`kill -0 ${handle.pid}`);

    assert.equal(await sandbox().commands.kill(handle.pid), true);
    await assert.rejects(handle.wait(), (error) => {
      assert.ok(error instanceof CommandExitError, String(error));
      assert.equal(error.exitCode, -1);
      assert.equal(error.error, "signal: killed");
      return true;
    });
    await assert.rejects(sandbox().commands.run(`kill -0 ${handle.pid}`), CommandExitError);
    assert.equal(await sandbox().commands.kill(handle.pid), false);
    assert.equal(
      (await sandbox().commands.list()).some(({ pid }) => pid === handle.pid),
      false,
    );
  });

  it("goes on without its client, which may connect again", async () => {
    const go = `go-${Math.random().toString(36).slice(2)}`;
    const handle = await sandbox().commands.run(
      `while [ ! -e ${go} ]; do sleep 0.05; done; echo still here; exit 4`,
      {
        background: true,
      },
    );
    await handle.disconnect();
    const again = await sandbox().commands.connect(handle.pid);
    assert.equal(again.pid, handle.pid);
    await sandbox().commands.run(`touch ${go}`);
    await assert.rejects(again.wait(), (error) => {
      assert.ok(error instanceof CommandExitError, String(error));
      assert.equal(error.exitCode, 4);
      assert.equal(error.stdout, "still here\n");
      return true;
    });
    // The end is kept for later clients.
    const late = await sandbox().commands.connect(handle.pid);
    await assert.rejects(late.wait(), (error) => error instanceof CommandExitError && error.exitCode === 4);
  });

  it("ends a command whose time is up", async () => {
    // Found on this host by its unique argument: the pid on the host may differ from that inside.
    const seconds = `300.${randomInt(2 ** 32)}`;
    await assert.rejects(sandbox().commands.run(`exec sleep ${seconds}`, { timeoutMs: 1_000 }), (error) => {
      assert.ok(error instanceof TimeoutError, String(error));
      assert.match(error.message, /deadline_exceeded/);
      return true;
    });
    await eventually("its end", async () => (await runningProcesses(seconds)).length === 0);
  });

  it("carries a lot of output, whole and in order", async () => {
    const { stdout } = await sandbox().commands.run("seq 1 300000");
    const lines = stdout.split("\n");
    assert.equal(lines.length, 300_001);
    assert.ok(lines.slice(0, -1).every((line, index) => line === String(index + 1)));
  });

  const skip = agentBinary() === undefined && "terminals need the agent, which has not been built";
  it(
    "opens a terminal of a size that changes, which takes keys and ends with its shell",
    { skip },
    async () => {
      const { pty } = sandbox();
      const decoder = new TextDecoder();
      let shown = "";
      const onData = (data: Uint8Array) => void (shown += decoder.decode(data, { stream: true }));
      const terminal = await pty.create({ cols: 81, rows: 25, onData });
      const type = (keys: string) => pty.sendInput(terminal.pid, Buffer.from(keys));
      await type("tty; stty size\n");
      await eventually("its size", () => /^\/dev\/pts\/\d+\r\n25 81\r$/m.test(shown));
      await pty.resize(terminal.pid, { cols: 100, rows: 40 });
      await type("stty size\n");
      await eventually("its new size", () => /^40 100\r$/m.test(shown));
      await type("echo be''gun; sleep 600\n");
      await eventually("a command in it", () => /^begun\r$/m.test(shown));
      await type("\x03");
      // Keys that come while the shell handles the interrupt are lost.
      await eventually("the shell takes keys again", async () => {
        await type("echo inter''rupted\n");
        await pause(100);
        return /^interrupted\r$/m.test(shown);
      });
      await type("exit 7\n");
      await assert.rejects(terminal.wait(), (error) => {
        assert.ok(error instanceof CommandExitError, String(error));
        assert.equal(error.exitCode, 7);
        return true;
      });
    },
  );
}
