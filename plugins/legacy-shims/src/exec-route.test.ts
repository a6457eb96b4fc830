import assert from "node:assert/strict";
import { after, before, it } from "node:test";
import type { LiveSandbox } from "@coppice/core";
import { startTestServer, type TestServer } from "@coppice/core/testing";
import access from "@coppice/plugin-access";
import commands from "@coppice/plugin-commands";
import localProcess from "@coppice/plugin-local-process";
import sandboxApi from "@coppice/plugin-sandbox-api";
import legacyShims from "./index.js";

const API_KEY = `e2b_${"0a".repeat(20)}`;
let server: TestServer;
let sandbox: LiveSandbox;
before(async () => {
  server = await startTestServer({
    plugins: [
      [localProcess, {}],
      [commands, {}],
      [access, { apiKeys: [API_KEY] }],
      [sandboxApi, {}],
      [legacyShims, { maxOutput: "1KiB", maximumTimeout: "10s", maxBody: "4KiB", maxExecutions: 2 }],
    ],
  });
  sandbox = await server.sandboxes.create({ template: "base", timeoutMs: undefined, secure: true });
});
after(() => server.stop());

async function exec(body: unknown, { id = sandbox.record.id, key = API_KEY } = {}) {
  const response = await fetch(`${server.url}/sandboxes/${id}/exec`, {
    method: "POST",
    headers: { "x-api-key": key },
    body: typeof body === "string" ? body : JSON.stringify(body),
  });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

const whole = { timed_out: false, truncated: false };

it("A command runs to its end and its output comes in one answer", async () => {
  assert.deepEqual(await exec({ cmd: "echo out; echo größer >&2; exit 43" }), {
    status: 200,
    body: { stdout: "out\n", stderr: "größer\n", exit_code: 43, ...whole },
  });
  const arguments_ = await exec({ cmd: "printf", args: ["%s|", "a b", "$HOME", "'"] });
  assert.equal(arguments_.body["stdout"], "a b|$HOME|'|");
  const placed = await exec({
    cmd: 'echo "$GREETING $(pwd) $(cat)"',
    cwd: "/tmp",
    env: { GREETING: "hi" },
    user: "root",
  });
  assert.match(String(placed.body["stdout"]), /^hi \S*\/tmp \n$/);
  assert.equal((await exec({ cmd: "no-such-program", args: [] })).body["exit_code"], 127);
  assert.equal((await exec({ cmd: "true" }, { id: `${sandbox.record.id}-client` })).status, 200);
});

it("A command that takes too long is killed, and its output is returned", async () => {
  assert.deepEqual(await exec({ cmd: "echo before; sleep 60", timeout_ms: 300 }), {
    status: 200,
    body: { stdout: "before\n", stderr: "", exit_code: -1, timed_out: true, truncated: false },
  });
});

it("More output than is kept is dropped, and the command still ends by itself", async () => {
  const answer = await exec({ cmd: "head -c 1000000 /dev/zero | tr '\\0' x; echo end >&2" });
  assert.deepEqual(answer.body, {
    stdout: "x".repeat(1024),
    stderr: "end\n",
    exit_code: 0,
    timed_out: false,
    truncated: true,
  });
});

it("Unauthenticated clients, unknown sandboxes and bad requests are refused", async () => {
  assert.equal((await exec({ cmd: "true" }, { key: "" })).status, 401);
  const unknown = await exec({ cmd: "true" }, { id: "iunknown" });
  assert.equal(unknown.status, 404);
  assert.equal(unknown.body["code"], 404);
  assert.match(String(unknown.body["message"]), /sandbox not found/);
  for (const id of ["NoId", "..%2F", "%00"]) {
    const { status, body } = await exec({ cmd: "true" }, { id });
    assert.deepEqual([status, body["message"]], [400, "Invalid sandbox ID"], id);
  }
  for (const body of [
    "no JSON",
    [],
    {},
    { cmd: "" },
    { cmd: "true", timeout_ms: 0 },
    { cmd: "true", timeout_ms: 10_001 },
    { cmd: "true", env: { "A=B": "x" } },
    { cmd: "a\0b", args: [] },
    { cmd: "true", cwd: "/no/such/place" },
  ]) {
    assert.equal((await exec(body)).status, 400, JSON.stringify(body));
  }
  assert.equal((await exec({ cmd: "true", user: "nobody-here" })).status, 401);
  assert.equal((await exec({ cmd: "x".repeat(5000) })).status, 413);
});

it("No more than the configured number run at a time", async () => {
  const answers = await Promise.all(Array.from({ length: 5 }, () => exec({ cmd: "sleep 0.5" })));
  assert.deepEqual(
    answers.map(({ status }) => status).toSorted((a, b) => a - b),
    [200, 200, 429, 429, 429],
  );
  assert.equal((await exec({ cmd: "true" })).status, 200);
});
