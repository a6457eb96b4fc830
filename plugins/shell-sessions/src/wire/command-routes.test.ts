import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { type ShellServer, startShellServer } from "../testing/shell-server.js";

describe("commands of sessions over HTTP", { timeout: 120_000 }, () => {
  let shell: ShellServer;
  before(async () => {
    shell = await startShellServer();
  });
  after(() => shell[Symbol.asyncDispose]());

  const execute = (body: object) => shell.json("POST", "/api/execute", body);

  it("a command has its exit code, its output without the last newline, and the session it was sent to", async () => {
    const answer = await execute({ command: "echo out; printf 'a\\n\\n' >&2; false", sessionId: "one" });
    assert.ok(Number.isFinite(Date.parse(String(answer["timestamp"]))));
    delete answer["timestamp"];
    assert.deepEqual(answer, {
      success: false,
      exitCode: 1,
      stdout: "out",
      stderr: "a\n",
      command: "echo out; printf 'a\\n\\n' >&2; false",
      duration: 0,
      sessionId: "one",
    });
    const { sessionId, success } = await execute({ command: "" });
    assert.deepEqual([sessionId, success], [undefined, true]);
  });
});
