import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import type { LiveSandbox } from "@coppice/core";
import type { TestServer } from "@coppice/core/testing";
import { KernelAPI, ServerConnection } from "@jupyterlab/services";
import { startFullServer } from "../../harness/server/start-full-server.js";
import { jupyterScenarios, type JupyterPlace } from "./jupyter-scenarios.js";

describe("JupyterLab's client on a sandbox", { timeout: 240_000 }, () => {
  let server: TestServer;
  let sandbox: LiveSandbox;
  const place = (): JupyterPlace => ({ server, sandbox });

  before(async () => {
    server = await startFullServer();
    sandbox = await server.sandboxes.create({ template: "base", timeoutMs: 600_000, secure: true });
  });
  after(() => server.stop());

  describe("with the parts of a message apart", () => jupyterScenarios("v1", place));
  describe("with messages as JSON", () => jupyterScenarios("json", place));

  it("is kept out without the sandbox's token", async () => {
    const baseUrl = `${server.url}/sandboxes/${sandbox.record.id}/jupyter/`;
    const settings = ServerConnection.makeSettings({ baseUrl, token: "wrong", fetch, Request, Headers });
    await assert.rejects(KernelAPI.startNew({ name: "python3" }, settings), /no such sandbox/i);
  });
});
