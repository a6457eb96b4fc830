import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, it } from "node:test";
import { z } from "zod";
import { configure } from "../boot/configure.js";
import { BootError } from "../kernel/errors.js";
import { definePlugin } from "../plugin/plugin.js";
import { readConfig } from "./read.js";
import { duration, size } from "./units.js";

const directory = mkdtempSync(join(tmpdir(), "coppice-config-"));
after(() => rmSync(directory, { recursive: true }));

function file(text: string, name = "coppice.yaml"): string {
  const path = join(directory, name);
  writeFileSync(path, text);
  return path;
}

async function problemsOf(run: () => unknown): Promise<readonly string[]> {
  try {
    await run();
  } catch (error) {
    assert.ok(error instanceof BootError, String(error));
    return error.problems.map(({ at, message }) => `${at?.replace(`${directory}/`, "") ?? ""} ${message}`);
  }
  assert.fail("no BootError was thrown");
}

it("durations and sizes are parsed to milliseconds and bytes", () => {
  assert.equal(duration().parse("1.5s"), 1500);
  assert.equal(duration().parse("24h"), 86_400_000);
  assert.equal(size().parse("10GiB"), 10 * 2 ** 30);
  assert.throws(() => duration().parse("5"), /250ms, 30s, 5m or 24h/);
  assert.throws(() => size().parse("10GB"), /64KiB/);
});

it("${env:…} and ${file:…} are filled in, anywhere in a string", () => {
  file("from a file\n", "secret");
  const path = file('a: "${env:ONE}-${env:TWO:-two}"\nb: "${file:secret}"\n');
  assert.deepEqual(readConfig(path, { ONE: "one" }).values, { a: "one-two", b: "from a file" });
  const values = { a: "one-", b: "from a file" };
  assert.deepEqual(readConfig(path, { ONE: "one", TWO: "" }).values, values, "an empty one is set");
});

it("unresolved references and duplicate keys are reported together with their positions", async () => {
  const path = file('a: "${env:NOT_SET}"\nb: "${file:./absent}"\na: 1\nc: ${KEY}\nd: echo ${KEY}\n');
  const problems = await problemsOf(() => readConfig(path, {}));
  assert.equal(problems.length, 4);
  assert.match(
    problems.join("\n"),
    /coppice\.yaml:1:4 \$\{env:NOT_SET\}: the environment variable NOT_SET is not set; .*EnvironmentFile/,
  );
  assert.match(problems.join("\n"), /coppice\.yaml:2:4 .*absent/);
  assert.match(problems.join("\n"), /coppice\.yaml:3:1 .*unique/i);
  assert.match(problems.join("\n"), /coppice\.yaml:4:4 .*write \$\{env:KEY\}/);
});

it("an unknown key is reported with the known one that it resembles, at any depth", async () => {
  const kinds = z.discriminatedUnion("kind", [
    z.strictObject({ kind: z.literal("one"), path: z.string().optional() }),
    z.strictObject({ kind: z.literal("two"), size: size("1KiB") }),
  ]);
  const config = z
    .strictObject({
      made: z.record(z.string(), kinds).default({}),
      list: z.array(z.strictObject({ word: z.int() })),
    })
    .prefault({ list: [] });
  const nested = definePlugin({ name: "nested", config, setup: () => undefined });
  const path = file(`lisetners: {}
listeners: { api: { port: 1, hsot: here } }
sandboxes: { templates: { base: { pool: { mim: 1 }, quite: different } } }
plugins: { nested: { made: { a: { kind: two, syze: 1 } }, list: [{ word: 1, wrd: 1 }] } }
`);
  const problems = await problemsOf(() => configure(readConfig(path, {}), new Map([["nested", nested]])));
  assert.deepEqual(problems.toSorted(), [
    "coppice.yaml:1:1 unknown key 'lisetners'; did you mean 'listeners'?",
    "coppice.yaml:2:30 unknown key 'hsot'; did you mean 'host'?",
    "coppice.yaml:3:43 unknown key 'mim'; did you mean 'min'?",
    "coppice.yaml:3:53 unknown key 'quite'",
    "coppice.yaml:4:46 unknown key 'syze'; did you mean 'size'?",
    "coppice.yaml:4:77 unknown key 'wrd'; did you mean 'word'?",
  ]);
});

it("a file that cannot be read is one clear problem", async () => {
  assert.match(
    (await problemsOf(() => readConfig("/nowhere.yaml", {})))[0] ?? "",
    /cannot read the configuration/,
  );
});

it("every mistake of server and plugin settings is reported at once, with file and line", async () => {
  const strict = definePlugin({
    name: "strict",
    config: z.strictObject({ count: z.int() }),
    setup: () => undefined,
  });
  const path = file(`listeners:
  api: { port: 70000 }
dataDirectory: here
sandboxes:
  defaultTimeout: soon
plugins:
  strict:
    count: many
    colour: red
  fils: {}
  ./broken.mjs: {}
  ./plain.mjs: {}
`);
  file("throw new Error('boom');\n", "broken.mjs");
  file("export default {};\n", "plain.mjs");
  const problems = await problemsOf(() => configure(readConfig(path, {}), new Map([["strict", strict]])));
  const expected = [
    /coppice\.yaml:2:10 listeners\.api\.port: /,
    /coppice\.yaml:3:1 unknown key 'dataDirectory'/,
    /coppice\.yaml:5:3 sandboxes\.defaultTimeout: expected a length of time/,
    /coppice\.yaml:8:5 plugins\.strict\.count: /,
    /coppice\.yaml:9:5 unknown key 'colour'/,
    /coppice\.yaml:10:3 cannot load plugin 'fils' \(@coppice\/plugin-fils\): .*; did you mean 'files'\?$/,
    /coppice\.yaml:11:3 cannot load plugin '\.\/broken\.mjs' .*boom/,
    /coppice\.yaml:12:3 '\.\/plain\.mjs' is no plugin/,
  ];
  for (const pattern of expected)
    assert.ok(
      problems.some((problem) => pattern.test(problem)),
      `${pattern}\n${problems.join("\n")}`,
    );
  assert.equal(problems.length, expected.length, problems.join("\n"));
});
