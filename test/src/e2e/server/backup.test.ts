import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdir, readFile, stat, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { exchange } from "../../harness/clients/exchange.js";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { type Installation, makeInstallation, ServerProcess } from "../../harness/server/server-process.js";

const run = async (...args: string[]) => startCoppice(args).end;
const dataOf = ({ directory }: Installation): string => join(directory, "data");

/** Sandboxes of the shipped configurations are below `dataDir`, too. */
const boxesOf = (installation: Installation): string => join(dataOf(installation), "boxes");
const plugins = (directory: string) => ({ "local-process": { directory: join(directory, "data", "boxes") } });

function answers(server: ServerProcess, key: string) {
  return async (method: string, path: string, body?: unknown) =>
    exchange(server.url, {
      path,
      method,
      headers: { "x-api-key": key, "content-type": "application/json" },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
}

describe("coppice backup and restore", { timeout: 120_000 }, () => {
  it("keeps what a server has while it runs and writes, and another one has it then", async () => {
    const first = await makeInstallation({ plugins });
    const second = await makeInstallation({ plugins });
    for (const one of [first, second]) {
      await mkdir(boxesOf(one), { recursive: true });
      await writeFile(join(boxesOf(one), "guest.sqlite"), "no database");
    }
    const archive = join(first.directory, "backup.tar");
    try {
      let key = "";
      let sandboxId = "";
      {
        await using server = await ServerProcess.start(first.configFile);
        const made = await run("keys", "create", first.configFile, "--name", "kept", "--tenant", "default");
        assert.equal(made.code, 0, made.stderr);
        key = /\S{20,}/.exec(made.stdout.toString())?.[0] ?? "";
        const ask = answers(server, key);
        const created = await ask("POST", "/sandboxes", { templateID: "base", timeout: 300 });
        assert.equal(created.status, 201, created.text);
        sandboxId = (created.json() as { sandboxID: string }).sandboxID;
        const backing = startCoppice(["backup", first.configFile, archive]);
        while (backing.child.exitCode === null && backing.child.signalCode === null)
          assert.equal((await ask("POST", `/sandboxes/${sandboxId}/timeout`, { timeout: 300 })).status, 204);
        const { code, stderr } = await backing.end;
        assert.equal(code, 0, stderr);
        assert.equal((await stat(archive)).mode & 0o777, 0o600);
        const madeMs = (await stat(join(dataOf(first), "last-backup"))).mtimeMs;
        assert.ok(madeMs >= (await stat(archive)).birthtimeMs - 1000, "metrics tell of it");
        assert.doesNotMatch((await readFile(archive)).toString("latin1"), /guest\.sqlite/);
        const refused = await run("restore", first.configFile, archive, "--force");
        assert.equal(refused.code, 1);
        assert.match(refused.stderr, /may be in use, stop its server first/);
      }
      const restored = await run("restore", second.configFile, archive);
      assert.equal(restored.code, 0, restored.stderr);
      {
        await using server = await ServerProcess.start(second.configFile);
        const ask = answers(server, key);
        assert.equal((await ask("GET", "/sandboxes")).status, 200);
        const { stdout } = await run("audit", "list", second.configFile);
        assert.match(stdout.toString(), /sandboxes/);
        const gone = await ask("GET", `/sandboxes/${sandboxId}`);
        assert.equal(gone.status, 404);
        await eventually("the sandbox that runs elsewhere is told lost", async () =>
          (await ask("GET", `/events/sandboxes/${sandboxId}`)).text.includes("backend lost"),
        );
      }
      const again = await run("restore", second.configFile, archive);
      assert.equal(again.code, 1);
      assert.match(again.stderr, /is not empty/);
      const forced = await run("restore", second.configFile, archive, "--force");
      assert.equal(forced.code, 0, forced.stderr);
      assert.match(forced.stderr, /data\.before-\d+/);
      assert.equal(await readFile(join(boxesOf(second), "guest.sqlite"), "utf8"), "no database");
    } finally {
      await first.remove();
      await second.remove();
    }
  });

  it("leaves the last backup when it is killed in the middle or a file cannot be written", async () => {
    const installation = await makeInstallation();
    const { directory, configFile } = installation;
    const archive = join(directory, "backup.tar");
    try {
      await (await ServerProcess.start(configFile))[Symbol.asyncDispose]();
      await writeFile(join(dataOf(installation), "large"), "");
      await truncate(join(dataOf(installation), "large"), 2 ** 33);
      await writeFile(archive, "the last one");
      const { child, end } = startCoppice(["backup", configFile, archive]);
      await eventually("it writes", () => existsSync(`${archive}.new`));
      child.kill("SIGKILL");
      await end;
      assert.equal(await readFile(archive, "utf8"), "the last one");
      await truncate(join(dataOf(installation), "large"), 1);
      const { code, stderr } = await run("backup", configFile, join(directory, "nowhere", "backup.tar"));
      assert.equal(code, 1);
      assert.match(stderr, /there is no new backup: ENOENT/);
      const good = await run("backup", configFile, archive);
      assert.equal(good.code, 0, good.stderr);
      assert.equal(existsSync(`${archive}.new`), false);
    } finally {
      await installation.remove();
    }
  });
});
