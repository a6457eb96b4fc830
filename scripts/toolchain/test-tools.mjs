import { existsSync } from "node:fs";
import { mkdir, readFile, rm, writeFile, rename } from "node:fs/promises";
import { join, basename } from "node:path";
import { mayRun } from "./debian-packages.mjs";
import { TOOLCHAIN, ROOT } from "./project.mjs";
import { FailedStep, outputOf, runStep, told, runStepAgain } from "./step.mjs";
import { canInstallDebianPackages } from "./apt.mjs";

/** The Python SDKs that the server is tested with: the newest, and one of two years before. */
const SDKS = {
  newest: ["e2b==2.63.0", "e2b-code-interpreter==2.11.5"],
  older: ["e2b==1.0.3", "e2b-code-interpreter==1.0.1"],
};
const OLDEST_PYTHON = [3, 11];
/**
 * Packages of a third-party Jupyter kernel. pip installs no further dependencies, because the kernel runs in a Python
 * that has ipykernel.
 */
const SCHEME_KERNEL = ["calysto-scheme==2.1.9", "metakernel==1.0.7", "yasi==2.1.2", "comm==0.2.3"];
/** A compiler for all platforms, with headers and libraries of each. */
const ZIG = ["ziglang==0.17.1"];
const FOLDER = join(TOOLCHAIN, "test-venvs");

function suitablePython() {
  const probe = `import sys, venv, ensurepip; sys.exit(sys.version_info < (${OLDEST_PYTHON.join(", ")}))`;
  return ["/usr/bin/python3", "/usr/local/bin/python3", "python3"].find(
    (candidate) => outputOf(candidate, ["-c", probe]) !== undefined,
  );
}

/**
 * The interpreter of a venv with these packages; undefined when they cannot be had.
 * @param venv `probe` is a program that shows that they can be used, `options` are further ones of pip.
 */
async function venvWith(base, { name, packages, probe, options = [] }) {
  const folder = join(FOLDER, name);
  const interpreter = join(folder, "bin", "python3");
  // Written last: a venv without it was interrupted, or is of other versions.
  const record = join(folder, "installed.txt");
  const wanted = `${packages.join("\n")}\n`;
  if (existsSync(record) && (await readFile(record, "utf8")) === wanted) return interpreter;
  const fill = () => fillVenv(base, { folder, packages, probe, options });
  const isMade = await told(`Installing ${packages.join(" and ")} for Python`, fill);
  if (!isMade && process.env.CI)
    throw new FailedStep(`${packages.join(" and ")} could not be installed for Python`);
  if (!isMade) return undefined;
  await writeFile(record, wanted);
  return interpreter;
}

/** @returns true when it has the wanted packages. */
async function fillVenv(base, { folder, packages, probe, options }) {
  const interpreter = join(folder, "bin", "python3");
  await rm(folder, { recursive: true, force: true });
  await mkdir(FOLDER, { recursive: true });
  const pip = [
    "-m",
    "pip",
    "install",
    "--quiet",
    "--disable-pip-version-check",
    "--retries=3",
    "--timeout=15",
  ];
  const isMade =
    (await runStep(base, ["-m", "venv", folder])) === 0 &&
    (await runStep(interpreter, [...pip, ...options, ...packages])) === 0 &&
    outputOf(interpreter, ["-c", probe]) !== undefined;
  if (!isMade) await rm(folder, { recursive: true, force: true });
  return isMade;
}

/** An interpreter that has zig as its module `ziglang`; undefined when it cannot be had. */
export async function ensureZig() {
  const base = suitablePython();
  return base && venvWith(base, { name: "zig", packages: ZIG, probe: "import ziglang" });
}

/**
 * Makes Python environments for the tests alone: SDKs, a kernel, a compiler. Those that cannot be fetched are left
 * out, and the tests that need them are skipped with a reason.
 * @param paths the tests to run: all where there are none.
 * @returns environment variables with their paths.
 */
export async function testVenvs(paths) {
  const base = suitablePython();
  if (base === undefined) return {};
  const environment = {};
  for (const [name, packages] of Object.entries(SDKS)) {
    const interpreter = await venvWith(base, { name, packages, probe: "import e2b, e2b_code_interpreter" });
    if (interpreter !== undefined) environment[`COPPICE_PYTHON_SDK_${name.toUpperCase()}`] = interpreter;
  }
  const probe =
    "from importlib.util import find_spec as f; assert all(map(f, ['calysto_scheme', 'metakernel', 'comm']))";
  const scheme = await venvWith(base, {
    name: "scheme",
    packages: SCHEME_KERNEL,
    probe,
    options: ["--no-deps"],
  });
  if (scheme !== undefined) {
    const packages = outputOf(scheme, ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]);
    environment["COPPICE_SCHEME_KERNEL"] = packages?.trim();
  }
  const zig = mayRun(paths, /freebsd|third-party\/packages/) ? await ensureZig() : undefined;
  if (zig !== undefined) environment["COPPICE_ZIG"] = zig;
  return environment;
}

/** A module of Go that names etcd and all that it is made of, with versions and digests. */
const MODULE = join(ROOT, "test", "etcd");
const SERVER = "go.etcd.io/etcd/server/v3";

/** True where this machine has a Go as new as the module wants. @param text its `go.mod` */
function hasGo(text) {
  const numbers = (release) =>
    /(\d+)\.(\d+)/
      .exec(release ?? "")
      ?.slice(1)
      .map(Number) ?? [0, 0];
  const [major, minor] = numbers(outputOf("go", ["env", "GOVERSION"]));
  const [oldestMajor, oldestMinor] = numbers(/^go (.*)$/m.exec(text)?.[1]);
  return major > oldestMajor || (major === oldestMajor && minor >= oldestMinor);
}

/**
 * The newest etcd, built by the Go of this machine, beside the one of Debian. Without Go the tests that want it are
 * skipped.
 * @param paths the tests to run: all where there are none.
 * @returns the environment variable with its path.
 */
export async function testEtcd(paths) {
  if (!mayRun(paths, /fleet/)) return {};
  const text = await readFile(join(MODULE, "go.mod"), "utf8");
  const version = new RegExp(`${SERVER} (v\\S+)`).exec(text)?.[1];
  const program = join(TOOLCHAIN, `etcd-${version}`);
  if (!existsSync(program)) {
    if (!hasGo(text)) return {};
    // Under another name until it is whole: two runs may build it at once.
    const unfinished = `${program}.${process.pid}`;
    const build = () => runStepAgain("go build", "go", ["build", "-o", unfinished, SERVER], { cwd: MODULE });
    const code = await told(`Building etcd ${version} with Go`, build);
    if (code !== 0) {
      await rm(unfinished, { force: true });
      if (process.env.CI) throw new FailedStep(`etcd ${version} could not be built`);
      return {};
    }
    await rename(unfinished, program);
  }
  return { COPPICE_TEST_NEWEST_ETCD: program };
}

const GUEST = join(TOOLCHAIN, "debian-guest");
const MAKE = join(ROOT, "test", "freebsd", "make-guest.sh");

async function makeGuest() {
  const unfinished = `${GUEST}.${process.pid}`;
  await mkdir(unfinished, { recursive: true });
  try {
    const make = () => runStep(MAKE, [unfinished]);
    // Known packages may be older than the ones that can be had.
    if ((await make()) !== 0) {
      await runStepAgain("apt-get update", "apt-get", ["update", "-qq"]);
      if ((await make()) !== 0) return;
    }
    await rename(unfinished, GUEST);
  } finally {
    await rm(unfinished, { recursive: true, force: true });
  }
}

const isUsedBy = (path) => path.replace(/\/$/, "") === "test" || basename(path) === "vm.test.ts";

/**
 * A Debian for QEMU, for one test alone. Made anew when its folder is removed.
 * @param paths the tests to run: all where there are none.
 * @returns the environment variable with its path.
 */
export async function testGuest(paths) {
  if (paths.length > 0 && !paths.some(isUsedBy)) return {};
  if (process.arch !== "x64" || !canInstallDebianPackages()) return {};
  if (!existsSync(GUEST)) await told("Making a Debian for tests in QEMU", makeGuest);
  if (existsSync(GUEST)) return { COPPICE_TEST_GUEST: GUEST };
  if (process.env.CI) throw new FailedStep("a Debian for tests in QEMU could not be made");
  return {};
}
