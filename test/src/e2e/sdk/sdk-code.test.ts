import assert from "node:assert/strict";
import { randomInt } from "node:crypto";
import { it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { Sandbox } from "@e2b/code-interpreter";
import { runningProcesses } from "../../harness/host/running-processes.js";
import { onEachBackend } from "../../harness/server/on-each-backend.js";
import { codeScenarios } from "./code-scenarios.js";

onEachBackend(
  "code through the code interpreter SDK",
  ({ sandbox }) => {
    codeScenarios(sandbox);

    it("ends the kernel with its sandbox", async () => {
      const doomed = await Sandbox.create();
      // A child of the kernel, found on this host by its unique argument.
      const seconds = `300.${randomInt(2 ** 32)}`;
      await doomed.runCode(`import subprocess; child = subprocess.Popen(["sleep", "${seconds}"])`);
      const children = () => runningProcesses(seconds);
      assert.equal((await children()).length, 1);
      await doomed.kill();
      await eventually("the end of the kernel's child", async () => (await children()).length === 0);
      // The SDK forgets the timer of a request that is refused, and it would keep this process waiting.
      await assert.rejects(doomed.runCode("1", { requestTimeoutMs: 2_000 }), /sandbox/i);
    });
  },
  { onJails: true },
);
