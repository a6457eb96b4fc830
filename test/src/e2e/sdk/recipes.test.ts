import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { cp, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { after, before, describe, it, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { Sandbox } from "@e2b/code-interpreter";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { RECIPES, type RecipesServer, startRecipesServer } from "../../harness/server/recipes-server.js";
import { CHART_CASES, cellOf, partOf } from "./chart-cases.js";

/** By hand all of them; in CI those that most people use. */
const BY_HAND = process.env["COPPICE_TEST_RECIPES"] === "1";
const NAMES = ["base", "code-interpreter-v1", ...(BY_HAND ? ["r", "java"] : [])];
const WITHOUT_RECIPES =
  BY_HAND || process.env["CI"] === "true"
    ? missingForNamespaces()
    : "it takes minutes and a network: COPPICE_TEST_RECIPES=1 npm test -- test/src/e2e/sdk/recipes.test.ts";
const BUILD_TIMEOUT_MS = 900_000;
const PINS = "ignore";
const IMAGES = fileURLToPath(new URL("../../../../scripts/release/template-images.mjs", import.meta.url));

/** Builds the templates as a release does. @returns the reason for which they cannot be built */
async function buildImages(folder: string): Promise<string | undefined> {
  // The archive of earlier days is not reachable from everywhere.
  const parameters = [IMAGES, "--pins", PINS, folder, ...NAMES];
  const running = spawn(process.execPath, parameters, { stdio: ["ignore", "inherit", "pipe"] });
  const [said, [code]] = await Promise.all([text(running.stderr), once(running, "exit")]);
  return code === 0 ? undefined : said || `exit code ${code}`;
}

describe("the recipes of the repository", { skip: WITHOUT_RECIPES, timeout: 2 * BUILD_TIMEOUT_MS }, () => {
  let folder: string;
  let recipes: RecipesServer | undefined;
  /** Reason why a template is missing. */
  let failure: string | undefined;

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), "coppice-recipes-"));
    await cp(RECIPES, folder, { recursive: true });
    // It takes minutes more than the builds.
    if (BY_HAND) failure = await buildImages(folder);
    if (failure !== undefined) return;
    recipes = await startRecipesServer({ names: NAMES, folder, pins: PINS });
    ({ failure } = recipes);
    pointSdkAt(recipes.server.url);
  });
  after(async () => {
    await recipes?.[Symbol.asyncDispose]();
    await rm(folder, { recursive: true });
  });

  /** Uses a sandbox of a template. In CI a network without the packages is no failure of a recipe. */
  async function within(
    context: TestContext,
    template: string,
    use: (sandbox: Sandbox) => Promise<void>,
  ): Promise<void> {
    if (failure !== undefined) {
      if (BY_HAND) assert.fail(failure);
      context.skip(`the recipes cannot be built here: ${failure.slice(0, 300)}`);
      return;
    }
    const sandbox = await Sandbox.create(template);
    try {
      await use(sandbox);
    } finally {
      await sandbox.kill();
    }
  }

  const without = !BY_HAND && "by hand alone";
  it("come as images of a release: nothing is built", { skip: without }, (context) => {
    if (recipes === undefined) assert.fail(failure);
    const { printed } = recipes.server;
    for (const name of NAMES) {
      const [, tookMs] =
        new RegExp(`"tookMs":(\\d+),"msg":"template '${name}' is ready`).exec(printed.join("\n")) ?? [];
      context.diagnostic(`${name}: ${tookMs} ms`);
    }
    const built = printed.filter((line) => line.includes("building template"));
    assert.deepEqual(built, []);
  });

  it("base has what users of E2B find there", async (context) => {
    await within(context, "base", async (sandbox) => {
      const script = `set -e
        id -un; sudo -n id -un; sudo -n apt-get --version >/dev/null
        [ "$(python --version)" = "$(python3 --version)" ]; python3 -m pip --version >/dev/null; pip --version >/dev/null
        node -p 'Number(process.versions.node.split(".")[0]) >= 22'; npm --version >/dev/null; npx --version >/dev/null
        git --version >/dev/null; curl --version >/dev/null; wget --version >/dev/null; ss --version >/dev/null
        printf 'int main(void) { return 0; }' >one.c; gcc one.c; ./a.out; g++ -x c++ one.c; ./a.out; make --version >/dev/null
        pip install --no-index pip >/dev/null; npm prefix --global
        mkdir module; cd module; npm init -y >/dev/null; python3 -m venv environment; echo whole`;
      const { stdout } = await sandbox.commands.run(script, { timeoutMs: 60_000 });
      assert.equal(stdout, "user\nroot\ntrue\n/usr/local\nwhole\n");
    });
  });

  it("code-interpreter-v1 runs Python with charts, JavaScript, TypeScript and bash", async (context) => {
    await within(context, "code-interpreter-v1", async (sandbox) => {
      for (const each of CHART_CASES) {
        const { results, error } = await sandbox.runCode(cellOf(each));
        assert.equal(error, undefined, error?.traceback);
        assert.deepEqual(partOf(results[0]?.chart, each.chart), each.chart, each.name);
        assert.ok(Buffer.from(results[0]?.png ?? "", "base64").includes("PNG"));
      }
      const frame = await sandbox.runCode("import pandas, sklearn, scipy, cv2\npandas.DataFrame({'a': [1]})");
      assert.deepEqual(frame.results[0]?.data, { a: [1] }, frame.error?.traceback);
      for (const language of ["javascript", "typescript"]) {
        assert.equal((await sandbox.runCode("const x = 41\nx + 1", { language })).text, "42", language);
      }
      assert.equal(
        (await sandbox.runCode("echo $((41 + 1))", { language: "bash" })).logs.stdout.join(""),
        "42\n",
      );
    });
  });

  it("r runs R, and java Java", { skip: !BY_HAND && "by hand alone" }, async (context) => {
    await within(context, "r", async (sandbox) => {
      const plot = "library(ggplot2)\nggplot(data.frame(a=1:3, b=4:6), aes(a, b)) + geom_point()";
      const { results, error } = await sandbox.runCode(plot, { language: "r" });
      assert.equal(error, undefined, error?.traceback);
      assert.ok(results[0]?.png);
      assert.equal(
        (await sandbox.runCode("print(mean(c(1, 2, 3)))", { language: "r" })).logs.stdout.join(""),
        "[1] 2\n",
      );
      const options = { language: "r", envs: { GIVEN: 'it\'s "here"' } };
      assert.equal(
        (await sandbox.runCode('cat(Sys.getenv("GIVEN"))', options)).logs.stdout.join(""),
        'it\'s "here"',
      );
    });
    await within(context, "java", async (sandbox) => {
      const code = "var list = java.util.List.of(1, 2, 3);\nlist.size()";
      assert.equal((await sandbox.runCode(code, { language: "java" })).text, "3");
      const options = { language: "java", envs: { GIVEN: "here" } };
      assert.equal((await sandbox.runCode('System.getProperty("GIVEN")', options)).text, "here");
      assert.equal((await sandbox.commands.run("javac --version && mvn --version")).exitCode, 0);
    });
  });
});
