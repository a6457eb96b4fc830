import assert from "node:assert/strict";
import { createServer } from "node:net";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { readFile, writeFile } from "node:fs/promises";
import { request } from "node:http";
import { join } from "node:path";
import { describe, it } from "node:test";
import { connect } from "node:tls";
import { fileURLToPath } from "node:url";
import { eventually } from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { makeInstallation, ServerProcess } from "../../harness/server/server-process.js";

const CORE = fileURLToPath(new URL("../../../../core/dist/index.js", import.meta.url));

/** Serves a request that never ends. */
const ENDLESS = `
import { definePlugin } from ${JSON.stringify(CORE)};
export default definePlugin({
  name: "endless",
  setup: (plugin) => void plugin.http("api").get("/endless", () => new Promise(() => undefined)),
});
`;

const printed = (server: ServerProcess, text: string): Promise<unknown> =>
  eventually(text, () => server.printed.some((line) => line.includes(text)));

describe("a server in the foreground or as a service", { timeout: 120_000 }, () => {
  it("says what it waits for when it is told to stop, and ends at once when it is told again", async () => {
    const installation = await makeInstallation({
      config: { http: { drainTimeout: "60s" } },
      plugins: () => ({ "./endless.mjs": {} }),
    });
    try {
      await writeFile(join(installation.directory, "endless.mjs"), ENDLESS);
      const server = await ServerProcess.start(installation.configFile);
      const asking = request(`${server.url}/endless`, { headers: { "x-api-key": API_KEY } });
      asking.on("error", () => undefined);
      asking.end();
      await once(asking, "socket").then(([socket]) => socket.connecting && once(socket, "connect"));
      server.signal("SIGINT");
      await printed(server, "Coppice waits for 1 request, 60 s at most");
      server.signal("SIGINT");
      assert.deepEqual(await server.ended, { code: 130, signal: null });
    } finally {
      await installation.remove();
    }
  });

  it("reads its certificates again at SIGHUP without a terminal, and keeps the old ones when it cannot", async () => {
    const installation = await makeInstallation();
    const { directory, configFile } = installation;
    const issue = async (domain: string): Promise<void> => {
      const { code, stderr } = await startCoppice(["tls", "init", domain, join(directory, domain)]).end;
      assert.equal(code, 0, stderr);
      for (const name of ["cert.pem", "key.pem"])
        await writeFile(join(directory, name), await readFile(join(directory, domain, name)));
    };
    const nameServed = async (port: number): Promise<string> => {
      const socket = connect({ port, host: "127.0.0.1", rejectUnauthorized: false });
      await once(socket, "secureConnect");
      const names = socket.getPeerCertificate().subjectaltname ?? "";
      socket.destroy();
      return names;
    };
    try {
      await issue("one.test");
      const config = JSON.parse(await readFile(configFile, "utf8")) as { listeners: { api: object } };
      const tls = { cert: join(directory, "cert.pem"), key: join(directory, "key.pem") };
      config.listeners.api = { ...config.listeners.api, tls };
      await writeFile(configFile, JSON.stringify({ ...config, log: { level: "info" } }));
      await using server = await ServerProcess.start(configFile);
      const port = Number(new URL(server.url).port);
      assert.match(await nameServed(port), /one\.test/);
      await issue("two.test");
      server.signal("SIGHUP");
      await printed(server, '"changed":["certificates"]');
      assert.match(await nameServed(port), /two\.test/);
      await writeFile(tls.key, "no key");
      server.signal("SIGHUP");
      await printed(server, "could not be taken over");
      assert.match(await nameServed(port), /two\.test/);
    } finally {
      await installation.remove();
    }
  });

  it("says that a port is taken before anything is started", async () => {
    const taken = createServer().listen(0, "127.0.0.1");
    await once(taken, "listening");
    const { port } = taken.address() as AddressInfo;
    const installation = await makeInstallation({
      config: { listeners: { api: { port }, ops: { port: 0 } }, log: { level: "info" } },
    });
    try {
      const { code, stdout, stderr } = await startCoppice(["start", installation.configFile]).end;
      assert.equal(code, 78);
      assert.match(stderr, new RegExp(`listener 'api' cannot bind 127\\.0\\.0\\.1:${port}.*EADDRINUSE`));
      assert.equal(stdout.toString(), "");
    } finally {
      taken.close();
      await installation.remove();
    }
  });
});
