import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { API_KEY } from "../../harness/server/api-key.js";
import { COPPICE } from "../../harness/server/server-process.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

const run = promisify(execFile);
const DOMAIN = "dev.localhost";
const CLIENT = fileURLToPath(new URL("domain-client.js", import.meta.url));
const RESOLVER = new URL("../../harness/clients/resolve-localhost.js", import.meta.url).href;

it(
  "With a wildcard certificate of its own making, the SDK needs a domain and a key and nothing else",
  { timeout: 240_000 },
  async () => {
    const folder = await mkdtemp(join(tmpdir(), "coppice-domain-"));
    try {
      await run(process.execPath, [COPPICE, "tls", "init", DOMAIN, folder]);
      const tls = { cert: join(folder, "cert.pem"), key: join(folder, "key.pem") };
      await using server = await startFullServer({
        server: { domain: DOMAIN, listeners: { api: { host: "127.0.0.1", port: 0, tls } } },
      });
      const { port, protocol } = new URL(server.url);
      assert.equal(protocol, "https:");
      const { stdout } = await run(process.execPath, ["--import", RESOLVER, CLIENT], {
        env: {
          PATH: process.env["PATH"],
          NODE_EXTRA_CA_CERTS: join(folder, "ca.pem"),
          E2B_DOMAIN: `${DOMAIN}:${port}`,
          E2B_API_KEY: API_KEY,
        },
        timeout: 200_000,
      });
      assert.deepEqual(JSON.parse(stdout), {
        stdout: "hello\n",
        read: "a note",
        download: "a note",
        result: "42",
        page: 200,
        isListed: true,
        isRunning: true,
        isKilled: true,
        isRunningAfter: false,
      });
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  },
);
