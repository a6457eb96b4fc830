import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdir, mkdtemp, readFile, realpath, rename, rm, symlink, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
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

  it("is served anew by `coppice dev` when its file or the configuration changes, also after a mistake", async () => {
    const key = KEY_BY_HOW["a path beside the configuration"];
    const plugin = join(home, "acme-plugin", "index.js");
    const [text, config] = [await readFile(plugin, "utf8"), await writeConfig(home, key, "greeting: hola")];
    await using server = await ServerProcess.start(config, {}, [], COPPICE, "dev");
    const greets = async (greeting: string): Promise<void> => {
      const answer = await exchange(server.url, {
        path: "/acme/greeting",
        headers: { "x-api-key": API_KEY },
      });
      assert.deepEqual(answer.json(), { greeting });
    };
    const printed = (line: RegExp) => server.printed.filter((each) => line.test(each)).length;
    const until = async (line: RegExp, count: number): Promise<void> => {
      for (let left = 600; printed(line) < count; left--) {
        assert.ok(left > 0, server.printed.join("\n"));
        await sleep(50);
      }
    };
    await greets("hola");
    await writeFile(plugin, text.replace("{ greeting: plugin", "{ greeting: 'dev: ' + plugin"));
    await until(/E2B_API_URL=/, 2);
    await greets("dev: hola");
    // As an editor does it.
    const aside = `${config}~`;
    for (const [setting, line, count] of [
      ["greting: wrong", /it waits for a change/, 1],
      ["greeting: ciao", /E2B_API_URL=/, 3],
    ] as const) {
      await writeConfig(home, key, setting, aside);
      await rename(aside, config);
      await until(line, count);
    }
    assert.ok(printed(/unknown key 'greting'/) > 0);
    await greets("dev: ciao");
    await writeFile(plugin, text);
    await until(/E2B_API_URL=/, 4);
    // What the server itself writes beside its configuration is no change.
    assert.equal(printed(/it starts again/), 4);
    assert.deepEqual(await server.stop(), { code: 0, signal: null });
  });

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

async function writeConfig(
  home: string,
  key: string,
  setting: string,
  file = join(home, "coppice.yaml"),
): Promise<string> {
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
