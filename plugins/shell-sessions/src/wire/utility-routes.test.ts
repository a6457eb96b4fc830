import assert from "node:assert/strict";
import { it } from "node:test";
import { startShellServer } from "../testing/shell-server.js";

it(
  "a client learns the version, that the sandbox is there, and its programs",
  { timeout: 60_000 },
  async () => {
    await using shell = await startShellServer();
    assert.equal((await shell.json("GET", "/api/ping"))["message"], "healthy");
    assert.equal((await shell.json("GET", "/api/version"))["version"], "0.12.10");
    const { availableCommands: names, count } = await shell.json("GET", "/api/commands");
    assert.ok(Array.isArray(names) && names.includes("sh") && names.includes("cd"));
    assert.equal(count, names.length);
    assert.deepEqual((await shell.json("GET", "/api/process/list"))["processes"], []);
  },
);

it("a stream has comments in silence", { timeout: 60_000 }, async () => {
  await using shell = await startShellServer({ heartbeat: "50ms" });
  const answer = await shell.ask("POST", "/api/execute/stream", { command: "sleep 0.5" });
  const text = await answer.text();
  assert.match(text, /\n\n: heartbeat\n\n/);
  assert.match(text, /"exitCode":0\}\n\n$/);
});

it("a body with very many values is refused before it is parsed", { timeout: 60_000 }, async () => {
  await using shell = await startShellServer();
  const more = Array.from({ length: 6000 }, () => ({}));
  const answer = await shell.ask("POST", "/api/execute", { command: "true", more });
  assert.equal(answer.status, 400);
  assert.match(await answer.text(), /more than 5000 values/);
  assert.equal((await shell.ask("POST", "/api/execute", { command: "true", more: [1] })).status, 200);
});
