import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { Sandbox } from "@e2b/code-interpreter";
import type { TestServer } from "@coppice/core/testing";
import { eventually } from "../harness/eventually.js";
import { pointSdkAt } from "../harness/point-sdk-at.js";
import { isRunning } from "../harness/running-processes.js";
import { startFullServer } from "../harness/start-full-server.js";
import { codeScenarios } from "./code-scenarios.js";

describe("code through the code interpreter SDK", { timeout: 60_000 }, () => {
  let server: TestServer;
  let sandbox: Sandbox;

  before(async () => {
    server = await startFullServer();
    pointSdkAt(server.url);
    sandbox = await Sandbox.create();
  });
  after(() => server.stop());

  codeScenarios(() => sandbox);

  it("ends the kernel with its sandbox", async () => {
    const doomed = await Sandbox.create();
    const pid = Number((await doomed.runCode("import os; os.getpid()")).text);
    assert.ok(await isRunning(pid));
    await doomed.kill();
    await eventually(`the end of kernel ${pid}`, async () => !(await isRunning(pid)));
    // The SDK forgets the timer of a request that is refused, and it would keep this process waiting.
    await assert.rejects(doomed.runCode("1", { requestTimeoutMs: 2_000 }), /sandbox/i);
  });
});
