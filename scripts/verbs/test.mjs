import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { build, cleanBuild } from "../toolchain/build.mjs";
import { lint } from "../toolchain/lint.mjs";
import { prepare } from "../toolchain/prepare.mjs";
import { pythonSdks } from "../toolchain/python-sdks.mjs";
import { ROOT, workspaces } from "../toolchain/project.mjs";
import { FailedStep, runStep } from "../toolchain/step.mjs";

const REPORTER = join(ROOT, "scripts", "toolchain", "test-skips.mjs");
/** A test file that takes this long hangs. */
const TEST_TIMEOUT_MS = 4 * 60 * 1000;

/** Which test files to run: all, or those below the workspaces or files that were named. */
async function testGlobs(paths) {
  const chosen = paths.length > 0 ? paths.map((path) => path.replace(/\/$/, "")) : await workspaces();
  return chosen.map((path) => {
    if (!path.endsWith(".ts")) return `${path}/dist/**/*.test.js`;
    return path.replace("/src/", "/dist/").replace(/\.ts$/, ".js");
  });
}

/** Runs the tests, then says what was skipped and why. */
async function runTests(toolchain, globs) {
  const folder = await mkdtemp(join(tmpdir(), "coppice-test-"));
  const skips = join(folder, "skips.txt");
  try {
    const code = await runStep(
      toolchain.node,
      [
        "--test",
        "--test-concurrency=2",
        `--test-timeout=${TEST_TIMEOUT_MS}`,
        "--test-reporter=spec",
        "--test-reporter-destination=stdout",
        `--test-reporter=${REPORTER}`,
        `--test-reporter-destination=${skips}`,
        ...globs,
      ],
      { env: toolchain.environment },
    );
    const skipped = existsSync(skips) ? (await readFile(skips, "utf8")).split("\n").filter(Boolean) : [];
    console.log(`\n${skipped.length} skipped${skipped.length > 0 ? ":" : ""}`);
    for (const line of skipped) console.log(`  ${line}`);
    return code;
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** Builds from nothing, lints, and runs the tests: all, or those of the workspaces or files that are named. */
export async function run(paths) {
  const toolchain = await prepare();
  Object.assign(toolchain.environment, await pythonSdks());
  await cleanBuild();
  await build(toolchain);
  // A finding of the linter does not hide what the tests have to say.
  const lintError = await lint(toolchain).catch((error) => error);
  const code = await runTests(toolchain, await testGlobs(paths));
  if (lintError !== undefined && !(lintError instanceof FailedStep)) throw lintError;
  if (lintError !== undefined) console.error(`coppice: ${lintError.message}`);
  return code === 0 && lintError !== undefined ? 1 : code;
}
