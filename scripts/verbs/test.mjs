import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { onlyUnproven, withoutProven } from "../tests/proven-parts.mjs";
import { sourceOf, testFiles } from "../tests/test-files.mjs";
import { build, cleanBuild, prepare } from "../toolchain/prepare.mjs";
import { ensureTestPackages } from "../toolchain/debian-packages.mjs";
import { lint } from "../toolchain/lint.mjs";
import { testEtcd, testVenvs, testGuest } from "../toolchain/test-tools.mjs";
import { releaseSetupLock } from "../toolchain/setup-lock.mjs";
import { ROOT } from "../toolchain/project.mjs";
import { FailedStep, mustRunStep } from "../toolchain/step.mjs";

const RUNNER = join(ROOT, "scripts", "tests", "run-files.mjs");
/** More failures than these are not caused by timing. */
const MOST_RETRIED = 12;
/** Tests wait for more than half of their time, and pass on processors that are busier than these make two. */
const FILES_AT_ONCE = 6;
/** Time limit of a test file with all that it leaves open, and of each of its tests. */
const FILE_LIMIT_MS = 10 * 60 * 1000;
const SLOWEST = 10;

/**
 * Runs test files. @returns the files with failures, the failed and the skipped tests with their reasons, and of each file the
 * seconds that it ran and those of processors that it took.
 */
async function runFiles(toolchain, task) {
  const folder = await mkdtemp(join(tmpdir(), "coppice-test-"));
  const path = join(folder, "task.json");
  try {
    await writeFile(path, JSON.stringify({ ...task, limitMs: FILE_LIMIT_MS }));
    await mustRunStep("the run of the tests", toolchain.node, [RUNNER, path], {
      // Processes share one cache of compiled code.
      env: { ...toolchain.environment, NODE_COMPILE_CACHE: join(folder, "compiled") },
    });
    return JSON.parse(await readFile(path, "utf8"));
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function printLines(title, lines) {
  console.log(`\n${title}${lines.length > 0 ? ":" : ""}`);
  for (const line of lines) console.log(`  ${line}`);
}

function linesOf({ file, test, reason }) {
  return [`${sourceOf(file)}: ${test}`, ...reason.map((line) => `  ${line}`)];
}

/** The files that ran longest, and those that took most of the processors. */
function printSlowest(all) {
  const inSeconds = (number) => `${number.toFixed(0).padStart(4)} s`;
  const line = ([file, seconds, cpu]) =>
    `${inSeconds(seconds)}  ${inSeconds(cpu)} of processors  ${sourceOf(file)}`;
  const first = (column) => [...all].sort((one, other) => other[column] - one[column]).slice(0, SLOWEST);
  printLines("The slowest files", first(1).map(line));
  const sum = all.reduce((total, [, , cpu]) => total + cpu, 0);
  printLines(`Those that took most of ${inSeconds(sum).trim()} of processors`, first(2).map(line));
}

/**
 * Runs the tests, and prints the slowest files, the failures, and the skipped tests with their reasons. Files with
 * failures run a second time, alone: several at a time keep this machine busy, and some tests depend on time.
 */
async function runTests(toolchain, { files, leftOut, isWhole, record }) {
  const first = await runFiles(toolchain, { files, filesAtOnce: FILES_AT_ONCE, isWhole });
  let { failed, failures } = first;
  const isRepeated = failed.length > 0 && failed.length <= MOST_RETRIED;
  if (isRepeated) {
    printLines("Once more, one at a time", failed.map(sourceOf));
    ({ failed, failures } = await runFiles(toolchain, { files: failed, filesAtOnce: 1 }));
  }
  if (isWhole) printSlowest(first.seconds);
  printLines(`${first.skipped.length + leftOut.length} skipped`, [
    ...leftOut.map(
      (file) => `left out: ${sourceOf(file)} (nothing that it is about has changed since it passed)`,
    ),
    ...first.skipped.map(({ test }) => test),
  ]);
  // Last, where a log that is cut short still has them.
  if (isRepeated) {
    const count = first.failed.length;
    printLines(`${count} files failed beside others, and ran again alone`, first.failures.flatMap(linesOf));
  }
  if (failed.length > 0) {
    const what = isRepeated ? "of them failed again" : "files failed";
    printLines(`${failed.length} ${what}`, failures.flatMap(linesOf));
    printLines(
      "Each is run again by",
      failed.map((file) => `npm test -- ${sourceOf(file)}`),
    );
  }
  await record({ failed, skipped: first.skipped });
  return failed.length === 0 ? 0 : 1;
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

/** Options of CI, which makes all ready for its tests while another machine is set up. */
const READY_ALONE = "--ready-alone";
const TESTS_ALONE = "--tests-alone";
/** Of everybody: runs what CI would not leave out, before a commit of what it passed with. */
const UNPROVEN = "--unproven";
const OPTIONS = [READY_ALONE, TESTS_ALONE, UNPROVEN];

/**
 * Builds from nothing, lints, and runs all tests or those of the named workspaces. For named files it compiles what
 * changed, and does not lint. With `--ready-alone` it runs no tests, with `--tests-alone` and `--unproven` it only compiles
 * what changed before them.
 */
export async function run(parameters) {
  const options = parameters.filter((each) => OPTIONS.includes(each));
  const paths = parameters.filter((each) => !options.includes(each));
  const toolchain = await prepare();
  const fetched = fetchForTests(paths);
  // Handled below: until then a failure of the build comes first.
  fetched.catch(() => undefined);
  const areFiles = paths.length > 0 && paths.every((path) => path.endsWith(".ts"));
  const isUnproven = options.includes(UNPROVEN);
  const isChecked = areFiles || isUnproven || options.includes(TESTS_ALONE);
  if (!isChecked) await cleanBuild();
  await build(toolchain);
  // The tests run even after a finding of the linter.
  const lintError = isChecked ? undefined : await lint(toolchain).catch((error) => error);
  Object.assign(toolchain.environment, await fetched);
  let code = 0;
  if (!options.includes(READY_ALONE)) {
    releaseSetupLock();
    // Who names tests, or asks for all variants, wants all of them.
    const isAll = paths.length > 0 || process.env.COPPICE_TEST_VARIANTS !== undefined;
    const found = await testFiles(paths);
    const { environment, ...chosen } = isUnproven
      ? await onlyUnproven(found)
      : await withoutProven(found, isAll);
    Object.assign(toolchain.environment, environment);
    code = await runTests(toolchain, { ...chosen, isWhole: !areFiles });
  }
  if (lintError !== undefined && !(lintError instanceof FailedStep)) throw lintError;
  if (lintError !== undefined) console.error(`coppice: ${lintError.message}`);
  return code === 0 && lintError !== undefined ? 1 : code;
}
