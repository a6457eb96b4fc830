import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { type ShellServer, startShellServer } from "../testing/shell-server.js";

describe("commands of sessions over HTTP", { timeout: 120_000 }, () => {
  let shell: ShellServer;
  before(async () => {
    shell = await startShellServer({ heartbeat: "100ms" });
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

  it("a command without a session changes none, has its output as it is, and 124 after its time-out", async () => {
    await execute({ command: "cd /usr; kept=1", sessionId: "other" });
    const alone = await execute({ command: 'echo "$kept"; echo x >&2', sessionId: "__DISABLE_SESSION__" });
    assert.deepEqual([alone["stdout"], alone["stderr"], alone["exitCode"]], ["\n", "x\n", 0]);
    const slow = await execute({
      command: "echo begun; sleep 60",
      sessionId: "__DISABLE_SESSION__",
      timeoutMs: 300,
    });
    assert.deepEqual(
      [slow["stdout"], slow["stderr"], slow["exitCode"]],
      ["begun\n", "Command timed out after 300ms\n", 124],
    );
  });

  it("bytes that are no UTF-8 survive in base64", async () => {
    const command = "printf '\\377\\000\\303'";
    const { stdout } = await execute({ command, encoding: "base64" });
    assert.equal(stdout, Buffer.from([0xff, 0, 0xc3]).toString("base64"));
    const events = await shell.events("POST", "/api/execute/stream", { command, encoding: "base64" });
    const data = events.filter(({ type }) => type === "stdout").map((event) => event["data"]);
    assert.equal(data.join(""), Buffer.from([0xff, 0, 0xc3]).toString("base64"));
  });

  const stream = async (body: object) =>
    (await shell.events("POST", "/api/execute/stream", body)).map(({ type, data, exitCode, error }) => [
      type,
      exitCode ?? error ?? data,
    ]);

  it("a stream ends with the exit code of its command, however that ends", async () => {
    const session = { sessionId: "streams" };
    await execute({ command: "cd /usr; kept=1", ...session });
    assert.deepEqual(await stream({ command: 'echo "$kept $PWD"; kept=2; exit 3', ...session }), [
      ["start", undefined],
      ["stdout", "1 /usr\n"],
      ["complete", 3],
    ]);
    assert.equal((await execute({ command: "echo $kept", ...session }))["stdout"], "1");
    for (const [command, exitCode] of [
      ["set -e; false", 1],
      ["exec sh -c 'exit 4'", 4],
      ["kill -9 $$", 137],
      ["echo 'no end", 2],
    ] as const) {
      assert.deepEqual((await stream({ command, ...session })).at(-1), ["complete", exitCode], command);
    }
    assert.deepEqual(await stream({ command: "true", cwd: "/missing" }), [
      ["start", undefined],
      ["stderr", "Failed to change directory to '/missing'\n"],
      ["complete", 1],
    ]);
    assert.equal(
      (await shell.json("POST", "/api/execute/stream", { command: " " }, 400))["code"],
      "INVALID_COMMAND",
    );
  });

  it("a stream ends at its time-out with an error in both fields that clients read", async () => {
    const body = { command: "echo begun; sleep 60", sessionId: "late", timeoutMs: 300 };
    const events = await shell.events("POST", "/api/execute/stream", body);
    const { type, data, error } = events.at(-1) ?? {};
    assert.deepEqual([type, data], ["error", error]);
    assert.match(String(error), /Command timeout after 300ms/);
    const alone = { ...body, sessionId: "__DISABLE_SESSION__" };
    assert.deepEqual((await stream(alone)).slice(1), [
      ["stdout", "begun\n"],
      ["stderr", "Command timed out after 300ms\n"],
      ["complete", 124],
    ]);
  });

  it("a stream ends with its command, though a child in the background holds the output", async () => {
    const events = await stream({ command: "sleep 60 & echo started", sessionId: "holder" });
    assert.deepEqual(events.slice(1), [
      ["stdout", "started\n"],
      ["complete", 0],
    ]);
  });

  it("a stream carries long lines whole, and comments while nothing is written", async () => {
    const command = "head -c 1000000 /dev/zero | tr '\\0' x; echo; sleep 0.5";
    const answer = await shell.ask("POST", "/api/execute/stream", { command });
    const text = await answer.text();
    assert.match(text, /^: /m);
    const told = text.split("\n\n").filter((frame) => frame.startsWith("data: "));
    const data = told.map((frame) => (JSON.parse(frame.slice(6)) as { readonly data?: string }).data ?? "");
    assert.equal(data.join(""), `${"x".repeat(1_000_000)}\n`);
  });

  it("bad requests are refused with the envelope, and none is an error of the server", async () => {
    for (const body of [
      undefined,
      "{",
      "[]",
      {},
      { command: 1 },
      { command: "a\0" },
      { command: "a", timeoutMs: -1 },
    ]) {
      for (const path of ["/api/execute", "/api/execute/stream", "/api/process/start"]) {
        const { code, context, httpStatus } = await shell.json("POST", path, body, 400);
        assert.deepEqual([code, typeof context, httpStatus], ["VALIDATION_FAILED", "object", 400], path);
      }
    }
    for (const sessionId of [" ", "a\0", "x".repeat(257)])
      await shell.json("POST", "/api/execute", { command: "true", sessionId }, 400);
    assert.equal((await shell.json("POST", "/api/none", {}, 404))["code"], "UNKNOWN_ERROR");
  });
});
