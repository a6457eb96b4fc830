import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { startTestServer, type TestServer } from "@coppice/core/testing";
import commands from "@coppice/plugin-commands";
import localProcess from "@coppice/plugin-local-process";
import commandsV1 from "../index.js";

interface Answer {
  readonly run_id: string;
  readonly sandbox_id: string;
  readonly state: string;
  readonly exit_code: number | null;
  readonly links: { readonly logs: string };
  readonly timing: Readonly<Record<string, number>>;
  readonly stdout: string;
  readonly stderr: string;
  readonly truncated: boolean;
  readonly error?: string;
  readonly code: string;
  readonly bytes: string;
  readonly phase: string;
}

describe("one-shot runs of /v1", { timeout: 120_000 }, () => {
  let server: TestServer;
  let dataDir: string;
  const start = () =>
    startTestServer({
      dataDir,
      plugins: [
        [commands, {}],
        [commandsV1, { maxRunOutput: "1KiB", checkInterval: "100ms" }],
        [localProcess, {}],
      ],
    });
  before(async () => {
    dataDir = await mkdtemp(join(tmpdir(), "coppice-v1-runs-"));
    server = await start();
  });
  after(async () => {
    await server.stop();
    await rm(dataDir, { recursive: true });
  });

  const ask = async (method: string, path: string, body?: unknown, signal?: AbortSignal) => {
    const response = await fetch(`${server.url}/v1/one-shot-runs${path}`, {
      method,
      ...(signal && { signal }),
      ...(body !== undefined && { body: typeof body === "string" ? body : JSON.stringify(body) }),
    });
    const text = await response.text();
    return { status: response.status, body: (text === "" ? {} : JSON.parse(text)) as Answer };
  };
  const sh = (script: string, more: object = {}) => ({ argv: ["/bin/sh", "-c", script], ...more });
  const noSandboxes = async () => {
    for (let tries = 0; server.sandboxes.list().length > 0; tries += 1) {
      assert.ok(tries < 200, "a sandbox is left");
      await delay(20);
    }
  };

  it("answer with the output of both streams, the exit code and the times, and leave no sandbox", async () => {
    const { status, body } = await ask(
      "POST",
      "",
      sh("pwd; echo $A; echo err >&2; exit 3", { env: { A: "b" } }),
    );
    assert.equal(status, 200);
    assert.match(body.stdout, /\/workspace\nb\n$/);
    assert.deepEqual(
      [body.state, body.exit_code, body.stderr, body.truncated],
      ["exited", 3, "err\n", false],
    );
    const {
      create_ms: create = -1,
      exec_ms: exec = -1,
      cleanup_ms: cleanup = -1,
      total_ms: total,
    } = body.timing;
    assert.ok(create >= 0 && exec >= 0 && cleanup >= 0);
    assert.equal(total, create + exec + cleanup);
    await noSandboxes();
    assert.deepEqual((await ask("GET", `/${body.run_id}`)).body, body);
    const page = (await (await fetch(`${server.url}${body.links.logs}?cursor=0`)).json()) as Answer;
    assert.deepEqual([page.phase, page.exit_code], ["exited", 3]);
    assert.match(page.bytes, /err/);
    for (const expected of [204, 404])
      assert.equal((await ask("DELETE", `/${body.run_id}`)).status, expected);
    assert.equal((await ask("GET", `/${body.run_id}`)).status, 404);
  });

  it("are followed when detached, and ended by a DELETE, a time-out, or a client that leaves", async () => {
    const { status, body } = await ask("POST", "?detach=true", sh("echo begun; sleep 0.3; echo ended"));
    assert.deepEqual([status, body.state, body.exit_code], [202, "running", null]);
    const followed = await fetch(`${server.url}${body.links.logs}?follow=true`);
    assert.match(await followed.text(), /begun[^]*ended[^]*event: end/);
    for (let now = body; now.timing["cleanup_ms"] === null; await delay(20)) {
      now = (await ask("GET", `/${body.run_id}`)).body;
    }
    assert.equal((await ask("GET", `/${body.run_id}`)).body.stdout, "begun\nended\n");
    const long = (await ask("POST", "?detach=true", sh("sleep 60"))).body;
    assert.equal((await ask("DELETE", `/${long.run_id}`)).status, 204);
    await noSandboxes();
    const late = (await ask("POST", "", sh("echo some; sleep 60", { timeout_seconds: 0.5 }))).body;
    assert.deepEqual([late.state, late.stdout, late.error], ["killed", "some\n", "the command timed out"]);
    const client = new AbortController();
    const left = ask("POST", "", sh("sleep 60"), client.signal);
    while (server.sandboxes.list().length === 0) await delay(10);
    client.abort();
    await assert.rejects(left);
    await noSandboxes();
  });

  it("keep as much output as the configuration says, of each stream", async () => {
    const { body } = await ask("POST", "", sh("head -c 600000 /dev/zero | tr '\\0' x; echo last >&2"));
    assert.deepEqual([body.stdout, body.stderr, body.truncated], ["x".repeat(1024), "last\n", true]);
  });

  it("are lost with their server, and say so with the output until then", async () => {
    const { body } = await ask("POST", "?detach=true", sh("echo before; sleep 60"));
    while ((await ask("GET", `/${body.run_id}`)).body.stdout === "") await delay(20);
    await server.stop();
    server = await start();
    for (let now = body; now.state === "running"; await delay(20)) {
      now = (await ask("GET", `/${body.run_id}`)).body;
      assert.equal(now.stdout, "before\n");
    }
    assert.equal((await ask("GET", `/${body.run_id}`)).body.state, "lost");
  });

  it("refuse bad input, and leave nothing", async () => {
    for (const body of [
      "",
      "{",
      "{}",
      { argv: [] },
      sh("true", { timeout_seconds: 0 }),
      sh("true", { cwd: "/none" }),
    ]) {
      const { status, body: answer } = await ask("POST", "", body);
      assert.equal(status, 400, JSON.stringify([body, answer]));
    }
    assert.equal((await ask("POST", "?detach=maybe", sh("true"))).status, 400);
    assert.equal((await ask("POST", "", sh("true", { image: "none" }))).status, 404);
    for (const [method, path] of [
      ["GET", "/none"],
      ["GET", "/%00/logs"],
      ["DELETE", "/none"],
    ] as const) {
      assert.equal((await ask(method, path)).status, 404);
    }
    await noSandboxes();
  });
});
