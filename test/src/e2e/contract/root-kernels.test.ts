import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { Sandbox } from "@e2b/code-interpreter";
import type { TestServer } from "@coppice/core/testing";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

describe("kernels of the default account", { skip: missingForNamespaces(), timeout: 120_000 }, () => {
  let server: TestServer;
  let sandbox: Sandbox;
  before(async () => {
    server = await startFullServer({ backend: "linux-namespaces" });
    pointSdkAt(server.url);
    sandbox = await Sandbox.create();
  });
  after(() => server.stop());

  it("run as root where only root may enter the folder of their context, as at E2B", async () => {
    const context = await sandbox.createCodeContext({ cwd: "/root", language: "javascript" });
    assert.equal(context.cwd, "/root");
    const code = "[process.getuid(), process.cwd(), process.env.HOME].join()";
    assert.equal((await sandbox.runCode(code, { context })).text, "0,/root,/root");
    await sandbox.restartCodeContext(context);
    assert.equal((await sandbox.runCode(code, { context })).text, "0,/root,/root");
    const other = await sandbox.runCode("import os; print(os.getuid() > 0)");
    assert.equal(other.logs.stdout.join(""), "True\n");
  });

  it("that cannot start tell the SDK's caller why", async () => {
    const asked = sandbox.runCode("1", { language: "cobol" });
    await assert.rejects(asked, /500 Failed to create context: .*The 'cobol' kernel is not available/);
    const missing = sandbox.createCodeContext({ cwd: "/does/not/exist" });
    await assert.rejects(missing, /400 Failed to create context: cwd '\/does\/not\/exist' does not exist/);
  });
});

describe(
  "jupyter.user: root, through the code interpreter SDK",
  { skip: missingForNamespaces(), timeout: 120_000 },
  () => {
    let server: TestServer;
    let sandbox: Sandbox;
    before(async () => {
      server = await startFullServer({
        backend: "linux-namespaces",
        settings: { jupyter: { user: "root" } },
      });
      pointSdkAt(server.url);
      sandbox = await Sandbox.create();
    });
    after(() => server.stop());

    it("cells change the system, contexts begin in /root, and files belong to root", async () => {
      const ran = await sandbox.runCode(
        "import os\nopen('/etc/made-by-a-cell', 'w').close()\nprint(os.getuid(), os.getcwd())\n!touch /root/x && id -u",
      );
      assert.equal(ran.error, undefined, ran.error?.traceback);
      // Commands behind `!` run in a terminal.
      assert.equal(ran.logs.stdout.join(""), "0 /home/user\n0\r\n");
      const context = await sandbox.createCodeContext({ cwd: "/root", language: "python" });
      assert.equal(context.cwd, "/root");
      const listed = await sandbox.runCode("import os\nos.listdir('.').count('x')", { context });
      assert.equal(listed.text, "1");
      const bash = await sandbox.runCode("id -un; cd /root && pwd", { language: "bash" });
      assert.equal(bash.logs.stdout.join(""), "root\n/root\n");
      // Commands still run as the sandbox's user.
      assert.equal((await sandbox.commands.run("id -un")).stdout, "user\n");
    });
  },
);
