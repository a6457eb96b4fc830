import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, it } from "node:test";
import { readConfig } from "../config/read.js";
import { boot } from "../boot/boot.js";
import { examine } from "../boot/examine.js";
import { BootError } from "../kernel/errors.js";
import { check } from "./check.js";

let directory: string;

before(async () => {
  directory = await mkdtemp(join(tmpdir(), "coppice-check-"));
  const module = (name: string): string => JSON.stringify(new URL(`../${name}`, import.meta.url).href);
  await writeFile(
    join(directory, "backend.mjs"),
    `import { memoryBackend } from ${module("testing.js")};
     export default memoryBackend({ name: "jails", templates: ["base"], onCheck() { throw new Error("asked"); } });`,
  );
  await writeFile(
    join(directory, "open.mjs"),
    `import { definePlugin } from ${module("index.js")};
     export default definePlugin({ name: "open", setup: (plugin) => void plugin.http("api").get("/", () => {}) });`,
  );
});
after(() => rm(directory, { recursive: true }));

async function write(text: string): Promise<string> {
  const file = join(directory, "coppice.yaml");
  await writeFile(file, text);
  return file;
}

async function problemsOf(text: string): Promise<string> {
  try {
    await check(await write(text));
  } catch (error) {
    assert.ok(error instanceof BootError, String(error));
    return error.message.replaceAll(directory, "");
  }
  assert.fail("it is fine");
}

it("check tells where an error in the setup of a plugin by path was thrown", async () => {
  const module = JSON.stringify(new URL("../index.js", import.meta.url).href);
  await writeFile(
    join(directory, "wrong.mjs"),
    `import { definePlugin } from ${module};
     export default definePlugin({ name: "wrong", setup(plugin) { plugin.nothing.here(); } });`,
  );
  const problems = await problemsOf(
    `dataDir: ${join(directory, "data")}\nlisteners: { api: { port: 4000 } }\nplugins:\n  ./wrong.mjs: {}\n`,
  );
  assert.match(
    problems,
    /plugin 'wrong' could not be set up: Cannot read properties of undefined .*\(file:\/\/\/wrong\.mjs:2:\d+\)$/,
  );
});

it("check reports every problem of the combination of plugins, each with its line", async () => {
  assert.match(
    await problemsOf(
      "listeners:\n  api: { port: 4000 }\n  ops: { port: 4000 }\n  tls: { host: '::1', port: 4000 }\n",
    ),
    /^\/coppice\.yaml:3:10: listeners 'api' and 'ops' have the same port$/,
  );
  const problems = await problemsOf(`
dataDir: ${join(directory, "data")}
listeners:
  api: { host: 0.0.0.0, port: 4000 }
  opps: { port: 4001 }
sandboxes:
  defaultBackend: zones
  templates:
    base: { backend: vms }
    web: { backend: jails }
plugins:
  ./backend.mjs: {}
  ./open.mjs: {}
`);
  const [unserved = "", open = "", preferred = "", pinned = "", missing = "", ...more] = problems.split("\n");
  assert.match(unserved, /^\/coppice\.yaml:5:3: listeners\.opps: no plugin has a surface 'opps'$/);
  assert.match(
    open,
    /^\/coppice\.yaml:4:3: listener 'api' is on 0\.0\.0\.0.*surface 'api' has no authentication/,
  );
  assert.match(
    preferred,
    /^\/coppice\.yaml:7:3: sandboxes\.defaultBackend: there is no backend 'zones'; enabled are jails/,
  );
  assert.match(
    pinned,
    /^\/coppice\.yaml:9:13: sandboxes\.templates\.base\.backend: there is no backend 'vms'/,
  );
  assert.match(
    missing,
    /^\/coppice\.yaml:10:5: sandboxes\.templates\.web: backend 'jails' has no such template; it has base$/,
  );
  assert.deepEqual(more, []);
  assert.equal(existsSync(join(directory, "data")), false);
});

it("check reports two plugins with the same verb", async () => {
  const module = JSON.stringify(new URL("../index.js", import.meta.url).href);
  for (const name of ["one", "two"]) {
    await writeFile(
      join(directory, `${name}.mjs`),
      `import { definePlugin } from ${module};
       export default definePlugin({ name: "${name}", verbs: { brew: { tea: {} } }, setup() {} });`,
    );
  }
  assert.match(
    await problemsOf("listeners: { api: { port: 0 } }\nplugins:\n  ./one.mjs: {}\n  ./two.mjs: {}\n"),
    /^\/coppice\.yaml:4:3: plugins '\.\/one\.mjs' and '\.\/two\.mjs' both have the verb 'brew'$/,
  );
});

it("check reports reasons that two plugins declare, and those that core has", async () => {
  const module = JSON.stringify(new URL("../index.js", import.meta.url).href);
  const declare = (name: string, reason: string) =>
    writeFile(
      join(directory, `${name}.mjs`),
      `import { declareReasons, definePlugin } from ${module};
       const reasons = declareReasons({ unavailable: { ${reason}: "It is out. | Wait." } });
       export default definePlugin({ name: "${name}", reasons, setup() {} });`,
    );
  for (const name of ["three", "four"]) await declare(name, "tea_out");
  await declare("five", "server_busy");
  assert.match(
    await problemsOf(
      "listeners: { api: { port: 0 } }\nplugins:\n  ./three.mjs: {}\n  ./four.mjs: {}\n  ./five.mjs: {}\n",
    ),
    /4:3: plugins '\.\/three\.mjs' and '\.\/four\.mjs' both have the reason 'tea_out'\n.*5:3: plugin '\.\/five\.mjs' has the reason 'server_busy', which is core's$/,
  );
});

it("check and doctor report the line of an unreadable certificate", async () => {
  const text =
    "listeners:\n  api:\n    port: 0\n    tls: { cert: /no/cert.pem, key: /no/key.pem }\nlog: { level: silent }\n";
  const expected = /coppice\.yaml:4:5: listeners\.api\.tls cannot be read: ENOENT.*\/no\/cert\.pem/;
  assert.match(await problemsOf(text), expected);
  const findings = await examine({ config: readConfig(await write(text), {}) });
  assert.match(findings.find(({ severity }) => severity === "fail")?.message ?? "", expected);
});

it("an unusable dataDir is refused at once, by doctor and by the start", async (context) => {
  if (process.platform !== "linux") return context.skip("there is no /proc");
  const file = await write(
    "listeners: { api: { port: 0 } }\ndataDir: /proc/coppice/data\nlog: { level: silent }\n",
  );
  const config = readConfig(file, {});
  const findings = await examine({ config });
  const finding = findings.find(({ name }) => name === "dataDir");
  assert.equal(finding?.severity, "fail", JSON.stringify(finding));
  await assert.rejects(boot({ config }), /dataDir \/proc\/coppice\/data cannot be made: ENOENT/);
});
