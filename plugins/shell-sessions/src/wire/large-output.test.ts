import assert from "node:assert/strict";
import { once } from "node:events";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { WebSocket } from "ws";
import { type ShellServer, startShellServer } from "../testing/shell-server.js";

/** More than the buffers of a connection hold. */
const BYTES = 16_000_000;
/** As the command prints it, characters of several bytes included. */
const TEXT = '0123456789 €𝄞é\\"\n';
const COMMAND = `yes '${TEXT.trimEnd()}' | head -c ${BYTES}`;
const EXPECTED = Buffer.alloc(BYTES, TEXT);
const EXPECTED_TEXT = EXPECTED.toString();
const ATTEMPTS = 100;

describe("large output of commands", { timeout: 120_000 }, () => {
  let shell: ShellServer;
  before(async () => {
    // For the output of one command, but not for two.
    shell = await startShellServer({ maxOutput: "17MiB", maxSpool: "20MiB" });
  });
  after(() => shell[Symbol.asyncDispose]());

  // Not by `equal`: its message would have both.
  const assertWhole = (text: unknown): void => assert.ok(text === EXPECTED_TEXT, "the output is another one");
  const execute = (body: object) => shell.json("POST", "/api/execute", { command: COMMAND, ...body });
  const request = (body: object, signal: AbortSignal) =>
    fetch(`${shell.url}/api/execute`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ command: COMMAND, ...body }),
      signal,
    });

  it("is whole in every encoding, with and without a session, and in logs", async () => {
    for (const sessionId of ["one", "__DISABLE_SESSION__"]) {
      const text = await execute({ sessionId });
      assertWhole(text["stdout"]);
      assert.equal(text["truncated"], undefined);
      const { stdout } = await execute({ sessionId, encoding: "base64" });
      assert.ok(Buffer.from(String(stdout), "base64").equals(EXPECTED), sessionId);
    }
    const errors = await execute({ command: `{ ${COMMAND}; } >&2`, sessionId: "one" });
    assertWhole(errors["stderr"]);
    await shell.json("POST", "/api/process/start", { processId: "large", command: COMMAND });
    for (let status: unknown = "running"; status === "running";) {
      await delay(20);
      const { process } = await shell.json("GET", "/api/process/large");
      ({ status } = process as { readonly status: unknown });
    }
    const { stdout } = await shell.json("GET", "/api/process/large/logs");
    assertWhole(stdout);
  });

  it("is cut when the server has no room for it", async () => {
    // Each holds its output until both have written theirs.
    const running = ["first", "second"].map((sessionId) => {
      const command = `${COMMAND}; touch "$HOME/${sessionId}"; until [ -e "$HOME/go" ]; do sleep 0.05; done`;
      return execute({ command, sessionId });
    });
    const both = 'until [ -e "$HOME/first" ] && [ -e "$HOME/second" ]; do sleep 0.05; done; touch "$HOME/go"';
    await execute({ command: both, sessionId: "third" });
    const answers = await Promise.all(running);
    assert.ok(answers.some(({ truncated }) => truncated === true));
    for (const { exitCode, stdout } of answers) {
      const text = String(stdout).replace(/\uFFFD$/, "");
      assert.ok(exitCode === 0 && text.length > 500_000 && EXPECTED_TEXT.startsWith(text));
    }
  });

  const endings: Readonly<Record<string, () => Promise<void>>> = {
    "the client leaves before the answer": async () => {
      const client = new AbortController();
      const asked = request({ command: `${COMMAND}; sleep 0.3`, sessionId: "leaver" }, client.signal);
      setTimeout(() => client.abort(), 200);
      await assert.rejects(asked, { name: "AbortError" });
    },
    "the client leaves in the middle of the answer": async () => {
      const client = new AbortController();
      const { body } = await request({ sessionId: "leaver" }, client.signal);
      await body?.getReader().read();
      client.abort();
    },
    "the command takes too long": async () => {
      const command = `${COMMAND}; sleep 60`;
      await shell.json("POST", "/api/execute", { command, sessionId: "slow", timeoutMs: 1_000 }, 500);
      const alone = await execute({ command, sessionId: "__DISABLE_SESSION__", timeoutMs: 1_000 });
      assert.equal(alone["exitCode"], 124);
      assertWhole(alone["stdout"]);
    },
    "the shell ends": async () => {
      const command = `${COMMAND}; kill -9 $$`;
      await shell.json("POST", "/api/execute", { command, sessionId: "dying" }, 410);
    },
    "the sandbox is removed": async () => {
      const { sandboxes, url } = shell.server;
      const sandbox = await sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
      const { id } = sandbox.record;
      const answered = fetch(`${url}/sandboxes/${id}/shell/api/execute`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ command: `${COMMAND}; sleep 60` }),
      }).catch(() => undefined);
      await delay(500);
      await sandboxes.kill(id);
      await answered;
    },
    "the WebSocket has the answer": async () => {
      const socket = new WebSocket(`${shell.url.replace("http", "ws")}/ws`);
      await once(socket, "open");
      socket.send(message);
      const [data] = (await once(socket, "message")) as [Buffer];
      const { body } = JSON.parse(data.toString()) as { readonly body: { readonly stdout: string } };
      assertWhole(body.stdout);
      socket.terminate();
    },
    "the WebSocket is lost in the middle of the answer": async () => {
      const socket = new WebSocket(`${shell.url.replace("http", "ws")}/ws`);
      socket.once("open", () => socket.send(message));
      const [{ socket: stream }] = (await once(socket, "upgrade")) as [
        { readonly socket: NodeJS.ReadStream },
      ];
      await once(stream, "data");
      socket.terminate();
    },
    "nobody reads the logs to their end": async () => {
      const client = new AbortController();
      const { body } = await fetch(`${shell.url}/api/process/large/logs`, { signal: client.signal });
      await body?.getReader().read();
      client.abort();
    },
  };
  const message = JSON.stringify({
    type: "request",
    id: "1",
    method: "POST",
    path: "/api/execute",
    body: { command: COMMAND, sessionId: "socket" },
  });
  for (const [title, end] of Object.entries(endings)) {
    it(`takes no room of the server any more when ${title}`, async () => {
      await end();
      // The server learns a moment later that a client has left.
      for (let attempt = 1; ; attempt++) {
        const { stdout, truncated } = await execute({ sessionId: "next" });
        if (truncated === undefined) return assertWhole(stdout);
        assert.ok(attempt < ATTEMPTS, "the room is still taken");
        await delay(50);
      }
    });
  }
});
