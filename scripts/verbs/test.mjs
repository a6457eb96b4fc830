import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { build, cleanBuild } from "../toolchain/build.mjs";
import { ensureTestPackages } from "../toolchain/debian-packages.mjs";
import { lint } from "../toolchain/lint.mjs";
import { prepare } from "../toolchain/prepare.mjs";
import { testEtcd } from "../toolchain/test-etcd.mjs";
import { testGuest } from "../toolchain/test-guest.mjs";
import { testVenvs } from "../toolchain/test-venvs.mjs";
import { ROOT, workspaces } from "../toolchain/project.mjs";
import { FailedStep, runStep } from "../toolchain/step.mjs";

const SKIPS = join(ROOT, "scripts", "toolchain", "test-skips.mjs");
const FAILURES = join(ROOT, "scripts", "toolchain", "test-failures.mjs");
/** More failures than these are not caused by timing. */
const MOST_RETRIED = 12;
/** Tests often wait, so three at a time suit even two processors. */
const FILES_AT_ONCE = 3;
/** Time limit of a test file. */
const TEST_TIMEOUT_MS = 10 * 60 * 1000;

/** Globs of the test files to run: all, or those of the named workspaces or files. */
async function testGlobs(paths) {
  const chosen = paths.length > 0 ? paths.map((path) => path.replace(/\/$/, "")) : await workspaces();
  return chosen.map((path) => {
    if (!path.endsWith(".ts")) return `${path}/dist/**/*.test.js`;
    return path.replace("/src/", "/dist/").replace(/\.ts$/, ".js");
  });
}

/** Runs test files. @returns the exit code, the skipped tests with their reasons, and the files with failures. */
async function runFiles(toolchain, files, concurrency) {
  const folder = await mkdtemp(join(tmpdir(), "coppice-test-"));
  const reports = { [SKIPS]: join(folder, "skips.txt"), [FAILURES]: join(folder, "failures.txt") };
  const lines = async (report) =>
    existsSync(report) ? (await readFile(report, "utf8")).split("\n").filter(Boolean) : [];
  try {
    const code = await runStep(
      toolchain.node,
      [
        "--test",
        `--test-concurrency=${concurrency}`,
        `--test-timeout=${TEST_TIMEOUT_MS}`,
        "--test-reporter=spec",
        "--test-reporter-destination=stdout",
        ...Object.entries(reports).flatMap(([reporter, file]) => [
          `--test-reporter=${reporter}`,
          `--test-reporter-destination=${file}`,
        ]),
        ...files,
      ],
      // Processes share one cache of compiled code.
      { env: { ...toolchain.environment, NODE_COMPILE_CACHE: join(folder, "compiled") } },
    );
    return { code, skipped: await lines(reports[SKIPS]), failed: await lines(reports[FAILURES]) };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/**
 * Runs the tests, and prints the skipped ones with their reasons. Files with failures run a second time, alone:
 * several at a time keep this machine busy, and some tests depend on time. Their names are printed, too.
 */
async function runTests(toolchain, globs) {
  const first = await runFiles(toolchain, globs, FILES_AT_ONCE);
  let { code } = first;
  // A name that is no test file would pass as an empty run: an older Node does not report which file failed.
  const isKnown = first.failed.length > 0 && first.failed.every((file) => file.endsWith(".test.js"));
  if (code !== 0 && isKnown && first.failed.length <= MOST_RETRIED) {
    console.log(`\nOnce more, one at a time:\n${first.failed.map((file) => `  ${file}\n`).join("")}`);
    code = (await runFiles(toolchain, first.failed, 1)).code;
    console.log(
      `\n${first.failed.length} files needed a second run${code === 0 ? "" : ", and not all of them passed"}`,
    );
  }
  console.log(`\n${first.skipped.length} skipped${first.skipped.length > 0 ? ":" : ""}`);
  for (const line of first.skipped) console.log(`  ${line}`);
  return code;
}

/** Fetches the tools that only tests use. @returns environment variables with their paths. */
async function fetchForTests(paths) {
  return {
    ...(await ensureTestPackages(paths)),
    ...(await testGuest(paths)),
    ...(await testVenvs(paths)),
    ...(await testEtcd(paths)),
  };
}

/**
 * Builds from nothing, lints, and runs all tests or those of the named workspaces. For named files it compiles what
 * changed, and does not lint.
 */
export async function run(paths) {
  const toolchain = await prepare();
  const fetched = fetchForTests(paths);
  // Handled below: until then a failure of the build comes first.
  fetched.catch(() => undefined);
  const areFiles = paths.length > 0 && paths.every((path) => path.endsWith(".ts"));
  if (!areFiles) await cleanBuild();
  await build(toolchain);
  // The tests run even after a finding of the linter.
  const lintError = areFiles ? undefined : await lint(toolchain).catch((error) => error);
  Object.assign(toolchain.environment, await fetched);
  const code = await runTests(toolchain, await testGlobs(paths));
  if (lintError !== undefined && !(lintError instanceof FailedStep)) throw lintError;
  if (lintError !== undefined) console.error(`coppice: ${lintError.message}`);
  return code === 0 && lintError !== undefined ? 1 : code;
}
