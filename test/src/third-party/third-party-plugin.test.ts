import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdir, mkdtemp, realpath, rm, symlink, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Sandbox } from "e2b";
import { API_KEY } from "../harness/server/api-key.js";
import { exchange } from "../harness/clients/exchange.js";
import { COPPICE, ServerProcess } from "../harness/server/server-process.js";

const run = promisify(execFile);
const FIXTURE = fileURLToPath(new URL("../../fixtures/acme-plugin", import.meta.url));
const REPOSITORY = fileURLToPath(new URL("../../..", import.meta.url));

const KEY_BY_HOW = {
  "a path beside the configuration": "./acme-plugin/index.js",
  "the name of its package": "@acme/coppice-plugin-acme",
} as const;

describe("a plugin of somebody else, outside of the tree", { timeout: 240_000 }, () => {
  let home: string;

  before(async () => {
    home = await realpath(await mkdtemp(join(tmpdir(), "coppice-acme-")));
    await cp(FIXTURE, join(home, "acme-plugin"), { recursive: true });
    // The files that `npm install` would put there.
    const modules = join(home, "node_modules");
    await mkdir(join(modules, "@acme"), { recursive: true });
    await mkdir(join(modules, "@coppice"), { recursive: true });
    await cp(FIXTURE, join(modules, "@acme", "coppice-plugin-acme"), { recursive: true });
    await symlink(join(REPOSITORY, "core"), join(modules, "@coppice", "core"));
    const require = createRequire(join(REPOSITORY, "core", "package.json"));
    for (const name of ["prom-client", "zod"]) {
      await symlink(dirname(require.resolve(`${name}/package.json`)), join(modules, name));
    }
  });
  after(() => rm(home, { recursive: true, force: true }));

  for (const [how, key] of Object.entries(KEY_BY_HOW)) {
    it(`adds a route, a metric and a backend, named by ${how}`, async () => {
      await using server = await ServerProcess.start(await writeConfig(home, key, "greeting: bonjour"));

      const greeting = await exchange(server.url, {
        path: "/acme/greeting",
        headers: { "x-api-key": API_KEY },
      });
      assert.deepEqual(greeting.json(), { greeting: "bonjour" });
      const metrics = await exchange(server.urls["ops"] ?? "", { path: "/metrics" });
      assert.match(metrics.text, /^coppice_acme_greetings_total 1$/m);

      const connection = { apiUrl: server.url, sandboxUrl: server.url, apiKey: API_KEY };
      const sandbox = await Sandbox.create(connection);
      const { stdout } = await sandbox.commands.run("polly wants a cracker");
      assert.equal(stdout, "/bin/bash -l -c polly wants a cracker\n");
      assert.equal(await sandbox.kill(), true);
    });
  }

  it("is held to its own settings, with the line that is wrong", async () => {
    const file = await writeConfig(home, KEY_BY_HOW["the name of its package"], "greting: bonjour");
    await assert.rejects(run(process.execPath, [COPPICE, "check", file]), (error) => {
      const { code, stderr } = error as { readonly code: unknown; readonly stderr: string };
      assert.equal(code, 78);
      assert.match(stderr, /unknown key 'greting'/);
      assert.match(stderr, /coppice\.yaml:13:5/);
      return true;
    });
  });

  it("is listed with what it requires", async () => {
    const file = await writeConfig(home, KEY_BY_HOW["a path beside the configuration"], "greeting: salut");
    const { stdout } = await run(process.execPath, [COPPICE, "plugins", file]);
    assert.match(stdout, /^acme: requires backends; provides nothing$/m);
  });
});

async function writeConfig(home: string, key: string, setting: string): Promise<string> {
  const file = join(home, "coppice.yaml");
  await writeFile(
    file,
    `listeners:
  api: { host: 127.0.0.1, port: 0 }
  ops: { host: 127.0.0.1, port: 0 }
dataDir: ${join(home, "data")}
log: { level: warn }
plugins:
  access:
    apiKeys: ["${API_KEY}"]
  sandbox-api: {}
  envd-compat: {}
  commands: {}
  "${key}":
    ${setting}
`,
  );
  return file;
}
