import assert from "node:assert/strict";
import { createServer } from "node:net";
import { after, before, describe, it } from "node:test";
import { Sandbox } from "@e2b/code-interpreter";
import type { TestServer } from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { startFullServer } from "../../harness/server/start-full-server.js";
import { codeScenarios } from "./code-scenarios.js";
import { commandScenarios } from "./command-scenarios.js";
import { fileScenarios } from "./file-scenarios.js";

/** Ports that the SDKs have built in, without an option. */
const DEBUG_PORTS = { api: 3000, envd: 49983, code: 49999 } as const;

// It is a sandbox of the server that a client asks on its own host: no other one has the ports.
const skip = process.env["COPPICE_TEST_FOREIGN"] === "1" && "a foreign server has a debug sandbox of its own";

describe("debug mode: one shared sandbox on the fixed ports", { skip, timeout: 240_000 }, () => {
  let server: TestServer;
  let sandbox: Sandbox;

  before(async () => {
    for (const port of Object.values(DEBUG_PORTS)) await requireFreePort(port);
    // node:test gives each file a process of its own, so this ends with the file.
    process.env["E2B_DEBUG"] = "true";
    process.env["E2B_API_KEY"] = API_KEY;
    const listeners = Object.fromEntries(
      Object.entries(DEBUG_PORTS).map(([name, port]) => [name, { host: "127.0.0.1", port }]),
    );
    server = await startFullServer({
      server: { listeners },
      settings: { "envd-compat": { debugSandbox: true } },
    });
    sandbox = await Sandbox.create();
  });
  after(() => server?.stop());

  it("needs no creation, and shows in the list once it was used", async () => {
    assert.equal(sandbox.sandboxId, "debug_sandbox_id");
    assert.equal(sandbox.getHost(8080), "localhost:8080");
    assert.equal(await sandbox.isRunning(), true);
    assert.equal((await Sandbox.list().nextItems()).length, 1);
  });

  commandScenarios(() => sandbox);
  fileScenarios(() => sandbox);
  codeScenarios(() => sandbox);

  it("is the same sandbox for every client", async () => {
    await sandbox.files.write("shared.txt", "shared");
    const other = await Sandbox.create();
    assert.equal(await other.files.read("shared.txt"), "shared");
    assert.equal(await other.kill(), true);
    assert.equal(await sandbox.files.read("shared.txt"), "shared");
  });
});

async function requireFreePort(port: number): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const probe = createServer();
  probe.once("error", (error) =>
    reject(
      new Error(
        `port ${port} of 127.0.0.1 is taken, and debug mode of the E2B SDKs knows no other: stop what listens there`,
        { cause: error },
      ),
    ),
  );
  probe.listen(port, "127.0.0.1", () => probe.close(() => resolve()));
  await promise;
}
