import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { CommandExitError, Sandbox } from "e2b";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { makeInstallation, namespacePlugins, ServerProcess } from "../../harness/server/server-process.js";

const COMMANDS = 50;
const isPossible = process.platform === "linux" && process.getuid?.() === 0;

describe(
  "a server that is killed while sandboxes of linux-namespaces run",
  { skip: isPossible ? false : "it needs root on Linux", timeout: 240_000 },
  () => {
    it("finds them alive again, with their files, their commands and the true end of each", async () => {
      const installation = await makeInstallation({
        config: { sandboxes: { defaultBackend: "linux-namespaces" } },
        plugins: namespacePlugins,
      });
      try {
        const first = await ServerProcess.start(installation.configFile);
        pointSdkAt(first.url);
        const sandbox = await Sandbox.create({ metadata: { name: "survivor" } });
        await sandbox.files.write("kept.txt", "still here");
        const startedAt = performance.now();
        const pids: number[] = [];
        for (let index = 0; index < COMMANDS; index += 1) {
          // Half of them end while no server runs.
          const command = `sleep ${index % 2 === 0 ? 4 : 14}; echo end ${index}; exit ${index}`;
          pids.push((await sandbox.commands.run(command, { background: true })).pid);
        }
        first.signal("SIGKILL");
        await first.ended;
        assert.ok(performance.now() - startedAt < 4000, "starting the commands took too long for this test");
        await pause(Math.max(0, startedAt + 6000 - performance.now()));

        await using second = await ServerProcess.start(installation.configFile);
        pointSdkAt(second.url);
        const again = await Sandbox.connect(sandbox.sandboxId);
        assert.deepEqual((await again.getInfo()).metadata, { name: "survivor" });
        assert.equal(await again.files.read("kept.txt"), "still here");
        const running = new Set((await again.commands.list()).map(({ pid }) => pid));
        for (const [index, pid] of pids.entries()) {
          if (index % 2 === 1) assert.ok(running.has(pid), `command ${index} runs and is not listed`);
        }
        const codes = await Promise.all(
          pids.map(async (pid) => {
            const handle = await again.commands.connect(pid);
            try {
              return (await handle.wait()).exitCode;
            } catch (error) {
              assert.ok(error instanceof CommandExitError, String(error));
              return error.exitCode;
            }
          }),
        );
        assert.deepEqual(codes, [...pids.keys()]);
        assert.equal((await again.commands.run("echo and on")).stdout, "and on\n");
        await again.kill();
      } finally {
        await installation.remove();
      }
    });
  },
);
