import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, it, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { eventually } from "@coppice/core/testing";
import { Sandbox } from "@e2b/code-interpreter";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { type Installation, makeInstallation, ServerProcess } from "../../harness/server/server-process.js";
import { CHART_CASES, cellOf, partOf } from "./chart-cases.js";

const RECIPES = fileURLToPath(new URL("../../../../templates", import.meta.url));
/** By hand all of them; in CI those that most people use. */
const BY_HAND = process.env["COPPICE_TEST_RECIPES"] === "1";
const NAMES = ["base", "code-interpreter-v1", ...(BY_HAND ? ["r", "java"] : [])];
const WITHOUT_RECIPES =
  BY_HAND || process.env["CI"] === "true"
    ? missingForNamespaces()
    : "it takes minutes and a network: COPPICE_TEST_RECIPES=1 npm test -- test/src/e2e/sdk/recipes.test.ts";
const BUILD_TIMEOUT_MS = 900_000;

/** Name servers of this host that sandboxes can reach, too. */
function nameservers(): readonly string[] {
  const lines = readFileSync("/etc/resolv.conf", "utf8").matchAll(/^nameserver (\d+\.\d+\.\d+\.\d+)$/gm);
  return [...lines].map(([, address = ""]) => address).filter((address) => !address.startsWith("127."));
}

describe("the recipes of the repository", { skip: WITHOUT_RECIPES, timeout: 2 * BUILD_TIMEOUT_MS }, () => {
  let installation: Installation;
  let server: ServerProcess;
  /** Reason why a template is missing. */
  let failure: string | undefined;

  before(async () => {
    const servers = nameservers();
    const certificates = process.env["SSL_CERT_FILE"];
    installation = await makeInstallation({
      config: {
        sandboxes: {
          defaultBackend: "linux-namespaces",
          templates: Object.fromEntries(NAMES.map((name) => [name, {}])),
        },
        log: { level: "info" },
      },
      plugins: (directory) => ({
        "local-process": undefined,
        "jupyter": {},
        "linux-namespaces": {
          directory: join(directory, "namespaces"),
          egress: "auto",
          egressRange: "10.241.0.0/16",
          // The registries of a company, and its name servers, may have private addresses.
          egressBlocked: ["127.0.0.0/8", "169.254.0.0/16"],
          ...(servers.length > 0 && { nameservers: servers }),
        },
        "templates": {
          recipes: Object.fromEntries(NAMES.map((name) => [name, join(RECIPES, name, "recipe.yaml")])),
          // The archive of earlier days is not reachable from everywhere.
          pins: "ignore",
          builds: { ...(certificates !== undefined && { certificates }) },
        },
      }),
    });
    server = await ServerProcess.start(installation.configFile);
    pointSdkAt(server.url);
    const hasLogged = (pattern: RegExp): boolean => server.printed.some((line) => pattern.test(line));
    const isBuilt = (): boolean => NAMES.every((name) => hasLogged(new RegExp(`'${name}' is ready`)));
    const hasFailed = (): boolean => hasLogged(/was not built/);
    await eventually("the templates", () => isBuilt() || hasFailed(), BUILD_TIMEOUT_MS);
    if (hasFailed()) failure = server.printed.find((line) => line.includes("was not built"));
  });
  after(async () => {
    await server.stop();
    await installation.remove();
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
