import assert from "node:assert/strict";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, it } from "node:test";
import { BootError } from "@coppice/core";
import { startTestServer } from "@coppice/core/testing";
import localProcess from "./index.js";

let directory: string;

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "coppice-plugin-"));
});

afterEach(async () => {
  await rm(directory, { recursive: true });
});

it("a server creates sandboxes from processes and leaves nothing when it stops", async () => {
  const server = await startTestServer({ plugins: [[localProcess, { directory }]] });
  const create = { template: "base", timeoutMs: undefined, secure: false };
  const { runtime } = await server.sandboxes.create(create);
  const started = await runtime.spawn({
    path: "sh",
    args: ["-c", "echo hello > file; cat file; sleep 300 &"],
    env: { PATH: process.env["PATH"] ?? "/usr/bin:/bin" },
  });
  for await (const { data } of started.output) {
    assert.equal(Buffer.from(data).toString(), "hello\n");
    break;
  }
  assert.equal((await runtime.files.stat("/home/user/file")).sizeBytes, 6);
  await server.stop();
  assert.deepEqual(await readdir(directory), []);
});

it("all listeners that other machines can reach are refused by name", async () => {
  const listeners = {
    api: { host: "0.0.0.0", port: 0 },
    ops: { host: "127.0.0.1", port: 0 },
    volumes: { host: "::", port: 0 },
  };
  await assert.rejects(
    startTestServer({ plugins: [[localProcess, { directory }]], server: { listeners } }),
    (error) => {
      assert.ok(error instanceof BootError, String(error));
      assert.match(error.message, /listener 'api' on 0\.0\.0\.0/);
      assert.match(error.message, /listener 'volumes' on ::/);
      assert.doesNotMatch(error.message, /'ops'/);
      return true;
    },
  );
  assert.deepEqual(await readdir(directory), []);
});

it("`insecure` allows them, on a listener or on the backend", async () => {
  const open = { host: "0.0.0.0", port: 0 };
  const tries = [
    { settings: { directory }, listeners: { api: { ...open, insecure: true } } },
    { settings: { directory, insecure: true }, listeners: { api: open } },
  ];
  for (const { settings, listeners } of tries) {
    const server = await startTestServer({ plugins: [[localProcess, settings]], server: { listeners } });
    await server.stop();
  }
});
