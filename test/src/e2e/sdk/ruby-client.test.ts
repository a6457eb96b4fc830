import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { promisify } from "node:util";
import type { TestServer } from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { packFrame } from "../../harness/clients/connect-frames.js";
import { resultOf, RubyClient, type RubyClientOptions } from "../../harness/clients/ruby-client.js";
import { COPPICE } from "../../harness/server/server-process.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

const run = promisify(execFile);
const DOMAIN = "dev.localhost";

describe("The Ruby client", { timeout: 240_000 }, () => {
  let folder: string;
  let server: TestServer;
  let options: RubyClientOptions;

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), "coppice-ruby-"));
    await run(process.execPath, [COPPICE, "tls", "init", DOMAIN, folder]);
    const tls = { cert: join(folder, "cert.pem"), key: join(folder, "key.pem") };
    server = await startFullServer({
      server: { domain: DOMAIN, listeners: { api: { host: "127.0.0.1", port: 0, tls } } },
      // The client takes the domain from the answer; its default is E2B's.
      settings: { "sandbox-api": { domain: DOMAIN } },
    });
    options = {
      apiUrl: `https://api.${DOMAIN}`,
      apiKey: API_KEY,
      address: { host: "127.0.0.1", port: Number(new URL(server.url).port) },
      authority: await readFile(join(folder, "ca.pem"), "utf8"),
    };
  });
  after(async () => {
    await server.stop();
    await rm(folder, { recursive: true, force: true });
  });

  it("makes a sandbox, runs commands in it, moves files, and ends it", async () => {
    const client = new RubyClient(options);
    try {
      await client.create();
      assert.deepEqual(await client.exec("echo out; echo err >&2"), {
        stdout: "out\n",
        stderr: "err\n",
        status: 0,
      });
      assert.equal((await client.exec("exit 43")).status, 43);
      assert.equal((await client.exec("kill -TERM $$")).status, 1, "by a signal");
      assert.equal((await client.exec("no-such-program")).status, 127);
      const content = randomBytes(100_000);
      await client.write("/tmp/ruby/größer.bin", content);
      assert.deepEqual(await client.read("/tmp/ruby/größer.bin"), content);
      await assert.rejects(client.read("/tmp/ruby/none"), { kind: "not found" });
      assert.equal(client.portUrl(8080), `https://8080-${client.sandboxId}.${DOMAIN}`);
      await client.kill();
      assert.equal(client.hasHandle, false);
    } finally {
      client.close();
    }
  });

  it("lets go of a sandbox that somebody else has ended, by the words of the 404", async () => {
    const client = new RubyClient(options);
    try {
      await client.create();
      await server.sandboxes.kill(client.sandboxId);
      await assert.rejects(client.exec("true"), { kind: "server" });
      await client.kill();
      assert.equal(client.hasHandle, false);
    } finally {
      client.close();
    }
  });

  it("is told that its key is wrong", async () => {
    const client = new RubyClient({ ...options, apiKey: `e2b_${"0".repeat(40)}` });
    try {
      await assert.rejects(client.create(), { kind: "auth" });
    } finally {
      client.close();
    }
  });

  it("takes an empty status for a failure, and none for a broken server: what this server must not send", () => {
    const trailer = packFrame("{}", { flags: 2 });
    const ended = (end: object) => Buffer.concat([packFrame(JSON.stringify({ event: { end } })), trailer]);
    assert.equal(resultOf(ended({ exited: true, status: "exit status 0" })).status, 0);
    assert.equal(resultOf(ended({ exited: true, status: "" })).status, 1);
    assert.throws(() => resultOf(ended({ exited: true })), { kind: "protocol" });
    assert.throws(() => resultOf(trailer), { kind: "protocol" });
    assert.throws(
      () => resultOf(packFrame(JSON.stringify({ event: { end: { status: "exit status 0" } } }))),
      {
        kind: "protocol",
      },
    );
    assert.throws(() => resultOf(packFrame("{", { flags: 0 })), { kind: "protocol" });
    assert.throws(() => resultOf(packFrame("{}", { lengthBytes: 9 })), { kind: "protocol" });
  });
});
