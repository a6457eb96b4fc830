import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, relative } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const run = promisify(execFile);
const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const MAIN_CASE = "test/dist/freebsd/sandboxes/conformance.test.js";
const LIMITS = "test/dist/freebsd/sandboxes/limits.test.js";
const MACHINE = "test/dist/freebsd/host/vm.test.js";
const SHARING = "agent/dist/freebsd.test.js";
const OTHER = "test/dist/docs.test.js";
const TESTS = [SHARING, OTHER, MAIN_CASE, LIMITS, MACHINE];
/** Of parts that are therefore not proven. */
const NOT_RUN = [
  "plugins/linux-namespaces/dist/ordinary-user.test.js",
  "plugins/templates/dist/debian/debian-pins.test.js",
  "test/dist/e2e/sdk/recipes.test.js",
];

interface Chosen {
  readonly files: readonly string[];
  readonly variants?: string;
}

interface Run {
  readonly all?: boolean;
  readonly isUnprovenAlone?: boolean;
  readonly failed?: readonly string[];
  readonly skipped?: readonly string[];
  readonly CI?: string;
}

let tree: string;

async function write(path: string, text: string): Promise<void> {
  await mkdir(dirname(join(tree, path)), { recursive: true });
  await writeFile(join(tree, path), text);
}

/** Chooses the files of a whole run, and ends that run. */
async function choose(options: Run = {}): Promise<Chosen> {
  const { all = false, isUnprovenAlone = false, failed = [], skipped = [], CI = "true" } = options;
  const module = JSON.stringify(join(tree, "scripts/tests/proven-parts.mjs"));
  const absolute = (paths: readonly string[]): string =>
    JSON.stringify(paths.map((path) => join(tree, path)));
  const chosen = isUnprovenAlone ? "onlyUnproven" : "withoutProven";
  const script = `import { ${chosen} } from ${module};
    const { files, environment, record } = await ${chosen}(${absolute(TESTS)}, ${all});
    await record({ failed: ${absolute(failed)}, skipped: ${absolute(skipped)}.map((file) => ({ file, test: "skipped: a test (no fuse)" })) });
    console.log(JSON.stringify({ files, variants: environment.COPPICE_TEST_VARIANTS }));`;
  const { stdout } = await run(process.execPath, ["--input-type=module", "-e", script], {
    env: { ...process.env, CI },
  });
  const { files, ...rest } = JSON.parse(stdout) as Chosen;
  return { files: files.map((file) => relative(tree, file)), ...rest };
}

describe("parts of the tests of which nothing has changed", () => {
  before(async () => {
    tree = await mkdtemp(join(tmpdir(), "coppice-proven-"));
    await cp(join(ROOT, "scripts"), join(tree, "scripts"), { recursive: true });
    for (const path of [...TESTS, ...NOT_RUN]) await write(path, "");
    await write(SHARING, 'const variants = process.env["COPPICE_TEST_VARIANTS"];');
    await write(".gitignore", "dist\n");
    await write("agent/native/main.c", "int main(void) { return 0; }");
    await write("plugins/jail-freebsd/src/jails.ts", "export {};");
    await write("core/src/http/app.ts", "export {};");
    await write("test/freebsd/jail.sh", "true");
  });
  after(() => rm(tree, { recursive: true }));

  it("run whole where this is no clone", async () => {
    await choose();
    assert.deepEqual(await choose(), { files: TESTS });
  });

  it("are left out once they passed in CI, but for the main case, until something that they are about changes", async () => {
    await run("git", ["init", "--quiet"], { cwd: tree });
    for (const unproven of [
      { CI: "" },
      { failed: [LIMITS, MACHINE] },
      { failed: [SHARING], skipped: [MACHINE] },
    ])
      assert.deepEqual(await choose(unproven), { files: TESTS });

    const withoutJails = TESTS.filter((file) => file !== LIMITS);
    assert.deepEqual(await choose({ failed: [OTHER], skipped: [MACHINE, MAIN_CASE] }), { files: TESTS });
    assert.deepEqual(await choose(), { files: withoutJails, variants: "main" });
    assert.deepEqual(await choose(), {
      files: withoutJails.filter((file) => file !== MACHINE),
      variants: "main",
    });
    assert.deepEqual(await choose({ all: true, failed: [LIMITS] }), { files: TESTS });

    for (const path of ["plugins/jail-freebsd/src/names.test.ts", "agent/README.md"])
      await write(path, "beside the code");
    await write("core/src/http/app.ts", "export const changed = true;");
    assert.equal((await choose({ CI: "" })).files.length, 3);
    for (const path of ["plugins/jail-freebsd/src/jails.ts", "agent/native/main.c", "agent/native/new.c"]) {
      await write(path, "changed");
      assert.deepEqual(await choose({ isUnprovenAlone: true, CI: "" }), {
        files: [SHARING, MAIN_CASE, LIMITS],
      });
      assert.deepEqual(await choose(), { files: TESTS.filter((file) => file !== MACHINE) });
      assert.equal((await choose()).variants, "main");
    }
    await rm(join(tree, "test/freebsd/jail.sh"));
    assert.deepEqual(await choose({ CI: "" }), { files: TESTS });
  });
});
