import assert from "node:assert/strict";
import { Agent, request } from "node:http";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { setTimeout as pause } from "node:timers/promises";
import { Sandbox } from "e2b";
import { memoryBackend, startTestServer } from "@coppice/core/testing";
import sandboxApi from "@coppice/plugin-sandbox-api";
import { API_KEY } from "../../harness/server/api-key.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { COPPICE } from "../../harness/server/server-process.js";
import { startFullServer } from "../../harness/server/start-full-server.js";
import { reasonWithoutCaddy, startCaddy } from "../../harness/server/start-caddy.js";
import { reasonWithoutNginx, startNginx } from "../../harness/server/start-nginx.js";

const run = promisify(execFile);
const DOMAIN = "dev.localhost";
const CLIENT = fileURLToPath(new URL("refused-uploads-client.js", import.meta.url));
const RESOLVER = new URL("../../harness/clients/resolve-localhost.js", import.meta.url).href;
const PORT = 8080;
const WEBSOCKET =
  "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
const SECRET = "e2b_5ec7e7";

/** Answers of an attacker's program to a request and to an upgrade. It records what it receives afterwards. */
const ATTACKS: Readonly<Record<string, string>> = {
  "an upgrade that is refused and kept open":
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok",
  "an answer and a second one behind it":
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL",
  "chunks and more behind them":
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL",
  "a body where there is none":
    "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL",
  "a body of nothing new": "HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\nEVIL",
  "hints without end": `${"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(200)}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok`,
  "a status that nobody knows": "HTTP/1.1 099 No\r\nContent-Length: 4\r\n\r\nEVIL",
  "both framings": "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nEVIL",
  "101 to whoever asks": "HTTP/1.1 101 Fine\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nEVIL",
};

const PROXIES = [
  { name: "nginx", configuration: "config/nginx.conf", missing: reasonWithoutNginx, start: startNginx },
  {
    name: "Caddy",
    configuration: "config/caddy.conf",
    missing: reasonWithoutCaddy,
    start: startCaddy,
  },
];

for (const { name, configuration, missing, start } of PROXIES) {
  describe(`behind ${name} as ${configuration} has it`, { skip: missing ?? false, timeout: 240_000 }, () => {
    it("no answer of a program is given to somebody else, and no request of somebody else to it", async () => {
      let heard = "";
      let answer = "";
      const program = (connection: Duplex): void => {
        connection.on("error", () => undefined);
        connection.on("data", (data: Buffer) => {
          heard += data.toString("latin1");
          if (heard.endsWith("\r\n\r\n")) connection.write(answer, "latin1");
        });
      };
      await using server = await startTestServer({
        plugins: [
          [memoryBackend({ ports: { [PORT]: program } }), {}],
          [sandboxApi, {}],
        ],
        server: { http: { trustedProxies: ["127.0.0.1"] } },
      });
      await using proxy = await start(server.url);
      const { record } = await server.sandboxes.create({
        template: "base",
        timeoutMs: undefined,
        secure: false,
      });
      const address = `Host: localhost\r\nE2b-Sandbox-Id: ${record.id}\r\nE2b-Sandbox-Port: ${PORT}\r\n`;
      const agent = new Agent({ keepAlive: true, maxSockets: 1 });
      const victim = async (): Promise<readonly [status: number | undefined, text: string]> => {
        const asked = request(`${proxy.url}/health`, { agent, headers: { "x-api-key": SECRET } }).end();
        const [response] = (await once(asked, "response")) as [
          NodeJS.ReadableStream & { statusCode?: number },
        ];
        let text = "";
        for await (const chunk of response) text += String(chunk);
        return [response.statusCode, text];
      };
      const usual = await victim();
      assert.equal(usual[0], 200);
      for (const [what, text] of Object.entries(ATTACKS)) {
        for (const upgrade of ["", WEBSOCKET]) {
          for (const method of ["GET", "HEAD"]) {
            heard = "";
            answer = text;
            const attacker = connect(Number(new URL(proxy.url).port), "127.0.0.1");
            attacker.on("error", () => undefined).resume();
            attacker.write(`${method} / HTTP/1.1\r\n${address}${upgrade}\r\n`);
            await Promise.race([once(attacker, "data"), once(attacker, "close")]);
            for (let round = 0; round < 3; round++)
              assert.deepEqual(await victim(), usual, `${what} ${upgrade}`);
            await pause(20);
            assert(!heard.includes(SECRET), `${what} ${upgrade}: ${heard}`);
            attacker.destroy();
          }
        }
      }
      agent.destroy();
    });

    it("the SDK does what it does without it: commands while they run, files, terminals, ports", async () => {
      await using server = await startFullServer({ server: { http: { trustedProxies: ["127.0.0.1"] } } });
      await using proxy = await start(server.url);
      pointSdkAt(proxy.url);
      const sandbox = await Sandbox.create({ apiKey: API_KEY });
      const arrived: number[] = [];
      const startedAt = performance.now();
      const { stdout } = await sandbox.commands.run("echo first; sleep 2; echo second", {
        onStdout: () => void arrived.push(performance.now() - startedAt),
      });
      assert.equal(stdout, "first\nsecond\n");
      assert((arrived.at(-1) ?? 0) - (arrived[0] ?? 0) > 1000, "output is not held back");
      const large = new Blob([new Uint8Array(30 * 2 ** 20).fill(7)]);
      await sandbox.files.write("large.bin", large);
      const back = await sandbox.files.read("large.bin", { format: "bytes" });
      assert.equal(back.length, large.size);
      let seen = "";
      const terminal = await sandbox.pty.create({
        cols: 80,
        rows: 24,
        onData: (data) => void (seen += Buffer.from(data).toString()),
      });
      await sandbox.pty.sendInput(terminal.pid, Buffer.from("echo $((6*7)); exit\n"));
      await terminal.wait();
      assert.match(seen, /42/);
      await sandbox.kill();
    });

    it("the SDK is told why a large upload is refused", async () => {
      const folder = await mkdtemp(join(tmpdir(), "coppice-proxy-tls-"));
      try {
        await run(process.execPath, [COPPICE, "tls", "init", DOMAIN, folder]);
        await using server = await startFullServer({
          server: { domain: DOMAIN, http: { trustedProxies: ["127.0.0.1"] } },
          settings: { files: { maxUpload: "1MiB" } },
        });
        const certificate = { cert: join(folder, "cert.pem"), key: join(folder, "key.pem") };
        await using proxy = await start(server.url, certificate);
        const { stdout } = await run(process.execPath, ["--import", RESOLVER, CLIENT], {
          env: {
            PATH: process.env["PATH"],
            NODE_EXTRA_CA_CERTS: join(folder, "ca.pem"),
            E2B_DOMAIN: `${DOMAIN}:${new URL(proxy.url).port}`,
            E2B_API_KEY: API_KEY,
          },
          timeout: 100_000,
        });
        const reason = "SandboxError: 413: the upload is larger than 1048576 bytes";
        assert.deepEqual(
          JSON.parse(stdout),
          Array.from({ length: 4 }, () => reason),
        );
      } finally {
        await rm(folder, { recursive: true, force: true });
      }
    });
  });
}
