import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, readdir, rm, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, describe, it } from "node:test";
import { promisify } from "node:util";
import { eventually } from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { type Answer, exchange } from "../../harness/clients/exchange.js";
import { type Installation, makeInstallation, ServerProcess } from "../../harness/server/server-process.js";

const run = promisify(execFile);
const NEEDS_MOUNTS =
  process.platform === "linux" && process.getuid?.() === 0 ? false : "it mounts, which needs Linux and root";

describe("a server whose SQLite files are not as they were", { timeout: 240_000 }, () => {
  let installation: Installation;
  const servers: ServerProcess[] = [];
  const mounts: string[] = [];

  const install = async (): Promise<string> => {
    installation = await makeInstallation();
    const data = join(installation.directory, "data");
    await mkdir(data);
    return data;
  };
  const start = async (): Promise<ServerProcess> => {
    const server = await ServerProcess.start(installation.configFile);
    servers.push(server);
    return server;
  };
  const call = (server: ServerProcess, method: string, path: string, body?: object): Promise<Answer> =>
    exchange(server.url, {
      method,
      path,
      headers: { "x-api-key": API_KEY, "content-type": "application/json" },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
  const create = (server: ServerProcess) => call(server, "POST", "/v2/sandboxes", { templateID: "base" });
  const readiness = async (server: ServerProcess) => {
    const answer = await exchange(server.urls["ops"] ?? "", { path: "/readyz" });
    return { status: answer.status, ...(answer.json() as { readonly checks: Record<string, string> }) };
  };

  afterEach(async () => {
    for (const server of servers.splice(0)) {
      server.signal("SIGKILL");
      await server.ended;
    }
    for (const path of mounts.splice(0)) await run("umount", ["-l", path]);
    await installation.remove();
  });

  for (const [file, name] of [
    ["ledger.sqlite", "the ledger"],
    ["access/audit.sqlite", "the audit"],
    ["access/keys.sqlite", "the keys"],
  ] as const) {
    it(`says at its start which file it cannot use, and leaves it: ${name}, cut off or overwritten`, async () => {
      const data = await install();
      const first = await start();
      assert.equal((await create(first)).status, 201);
      await first.stop();
      const path = join(data, file);
      assert.ok(existsSync(path), (await readdir(data, { recursive: true })).join(" "));
      for (const spoil of [() => truncate(path, 5000), () => writeFile(path, "no database ".repeat(1000))]) {
        await spoil();
        const { code, stderr } = await startCoppice(["start", installation.configFile]).end;
        assert.equal(code, 78, stderr);
        assert.ok(stderr.includes(path), stderr);
      }
    });
  }

  it(
    "refuses what it could not remember, and says that it is not ready, on a disk that is full",
    { skip: NEEDS_MOUNTS },
    async () => {
      const data = await install();
      await run("mount", ["-t", "tmpfs", "-o", "size=4m", "coppice-test", data]);
      mounts.push(data);
      const server = await start();
      const kept = (await create(server)).json() as { readonly sandboxID: string };
      await writeFile(join(data, "ballast"), Buffer.alloc(2 ** 23)).catch(() => undefined);
      let refused: Answer | undefined;
      const made: string[] = [];
      const webhook = {
        name: "any",
        url: "https://example.com/",
        enabled: true,
        events: ["sandbox.lifecycle.created"],
        signatureSecret: "s".repeat(2 ** 9),
      };
      await eventually("a creation that is refused", async () => {
        const answer = await create(server);
        if (answer.status === 201) made.push((answer.json() as typeof kept).sandboxID);
        else refused = answer;
        return refused;
      });
      assert.equal(refused?.status, 503, refused?.text);
      assert.ok(refused.headers["retry-after"] !== undefined);
      assert.equal((await readiness(server)).status, 503);
      await eventually("a webhook that is refused for the same reason", async () => {
        const { status, text } = await call(server, "POST", "/events/webhooks", webhook);
        if (status === 201) return false;
        assert.match(`${status} ${text}`, /^503 .*cannot write to its disk/);
        return true;
      });
      await rm(join(data, "ballast"));
      await eventually("a creation that is made again", async () => (await create(server)).status === 201);
      await eventually(
        "a server that is ready again",
        async () => (await readiness(server)).checks["ledger"] === "ok",
      );
      for (const id of [kept.sandboxID, ...made])
        assert.equal((await call(server, "DELETE", `/sandboxes/${id}`)).status, 204);
    },
  );

  it("says that it is not ready when the ledger is deleted under it, and makes nothing that it would forget", async () => {
    const data = await install();
    const server = await start();
    assert.equal((await create(server)).status, 201);
    await rm(join(data, "ledger.sqlite"));
    const { status, checks } = await readiness(server);
    assert.equal(status, 503);
    assert.match(checks["ledger"] ?? "", /ledger\.sqlite is gone/);
    const refused = await create(server);
    assert.equal(refused.status, 503, refused.text);
  });

  it("does not start on a disk that is read-only", { skip: NEEDS_MOUNTS }, async () => {
    const data = await install();
    await (await start()).stop();
    await run("mount", ["--bind", data, data]);
    mounts.push(data);
    await run("mount", ["-o", "remount,ro,bind", data]);
    const { code, stderr } = await startCoppice(["start", installation.configFile]).end;
    assert.equal(code, 78, stderr);
    assert.ok(stderr.includes(join(data, "ledger.sqlite")), stderr);
  });
});
