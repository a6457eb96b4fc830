import { existsSync } from "node:fs";
import { mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { unpackDebianPackage } from "./apt.mjs";
import { MissingPrerequisite, ROOT, TOOLCHAIN } from "./project.mjs";
import { outputOf, runQuietly, told } from "./step.mjs";

const MODULES = ["ipykernel", "numpy", "pandas", "matplotlib"];
const INSTALL = ["install", "--quiet", "--disable-pip-version-check"];
/** A package of Debian with a wheel of pip. */
const PIP_PACKAGE = "python3-pip-whl";
const REQUIREMENTS = fileURLToPath(new URL("python-requirements.txt", import.meta.url));

const VENV = join(TOOLCHAIN, "python");
const VENV_PYTHON = join(VENV, "bin", "python3");
const RECORD = join(TOOLCHAIN, "python.json");

// The interpreter reports its own real path and prefixes: one found on PATH may be a version manager's shim, and a
// mount into a sandbox needs its folders.
const PROBE = `
import json, sys, ${MODULES.join(", ")}
from importlib.metadata import version
print(json.dumps({
    "interpreter": sys.executable,
    "prefix": sys.prefix,
    "basePrefix": sys.base_prefix,
    "version": sys.version.split()[0],
    "modules": {name: version(name) for name in ${JSON.stringify(MODULES)}},
}))`;

/** Describes an interpreter that can import every module; undefined for others. */
function probe(interpreter) {
  const output = outputOf(interpreter, ["-c", PROBE], { cwd: "/" });
  return output === undefined ? undefined : JSON.parse(output);
}

/** An earlier result of this checkout. A copy of a checkout has the record, and paths, of the other one. */
async function recorded() {
  try {
    const record = JSON.parse(await readFile(RECORD, "utf8"));
    return record.checkout === ROOT && existsSync(record.interpreter) ? record : undefined;
  } catch {
    return undefined;
  }
}

async function record(found) {
  await mkdir(TOOLCHAIN, { recursive: true });
  await writeFile(RECORD, `${JSON.stringify({ checkout: ROOT, ...found }, undefined, 2)}\n`);
  return found.interpreter;
}

/**
 * The system's interpreter, on which a venv is built: a folder that holds one then links to nothing but
 * /usr, so it can be mounted into a sandbox as it is.
 */
function basePython() {
  return ["/usr/bin/python3", "/usr/local/bin/python3", "python3"].find(
    (candidate) => outputOf(candidate, ["--version"]) !== undefined,
  );
}

async function makeVenv() {
  const base = basePython();
  if (base === undefined) return undefined;
  return told(`Installing ${MODULES.join(", ")} into a venv of ${base}`, () => fillVenv(base));
}

async function fillVenv(base) {
  await rm(VENV, { recursive: true, force: true });
  const isMade = (await openVenv(base)) && (await install()) && probe(VENV_PYTHON);
  if (isMade) return isMade;
  await rm(VENV, { recursive: true, force: true });
  return undefined;
}

/** Makes a venv with pip, from where that can be had. @returns false when it cannot */
async function openVenv(base) {
  const run = async (...step) => (await runQuietly("making a venv", ...step)) === 0;
  if (canImport(base, "venv, ensurepip")) return run(base, ["-m", "venv", VENV]);
  // Debian has ensurepip, and the pip that it installs, in packages of their own.
  if (!canImport(base, "venv")) return false;
  if (!(await run(base, ["-m", "venv", "--without-pip", VENV]))) return false;
  const wheel = await fetchPip();
  return wheel !== undefined && run(VENV_PYTHON, [join(wheel, "pip"), ...INSTALL, "--no-index", wheel]);
}

const install = async () =>
  (await runQuietly("pip", VENV_PYTHON, ["-m", "pip", ...INSTALL, "-r", REQUIREMENTS])) === 0;

const canImport = (interpreter, modules) =>
  outputOf(interpreter, ["-c", `import ${modules}`], { cwd: "/" }) !== undefined;

/** The wheel of pip that Debian has, in the project's own folder. @returns its path */
async function fetchPip() {
  const folder = join(TOOLCHAIN, "pip");
  if (!(await unpackDebianPackage(PIP_PACKAGE, folder))) return undefined;
  const wheels = join(folder, "usr", "share", "python-wheels");
  const names = await readdir(wheels).catch(() => []);
  const name = names.find((each) => /^pip-.*\.whl$/.test(each));
  return name && join(wheels, name);
}

/** True for a venv that was made where it is: the programs of a copied one name the Python of another checkout. */
async function isOwnVenv() {
  const program = await readFile(join(VENV, "bin", "pip"), "utf8").catch(() => "");
  return ["#!", '"', " "].some((before) => program.includes(`${before}${VENV_PYTHON}`));
}

async function existingPython() {
  // A venv of an earlier set-up, then the system's, then whatever PATH has: the first two can be mounted
  // into a sandbox, the third may live in a home directory.
  const own = (await isOwnVenv()) ? [VENV_PYTHON] : [];
  for (const candidate of [...own, "/usr/bin/python3", "python3"]) {
    const found = probe(candidate);
    if (found) return found;
  }
  return undefined;
}

/**
 * A Python that can run notebooks: an existing one, else a venv. Nothing is installed outside of the checkout.
 * `COPPICE_PYTHON` overrides the choice.
 * @returns the path of its interpreter, which `.toolchain/python.json` describes.
 */
export async function ensurePython() {
  const chosen = process.env.COPPICE_PYTHON;
  if (chosen) {
    const found = probe(chosen);
    if (found) return record(found);
    throw new MissingPrerequisite(
      `COPPICE_PYTHON is ${chosen}, which cannot import ${MODULES.join(", ")}: install them there with ` +
        "pip, or unset it.",
    );
  }
  // Importing all four takes a second, so an earlier result is reused while its interpreter exists.
  const known = await recorded();
  if (known !== undefined) return known.interpreter;
  const found = (await existingPython()) ?? (await makeVenv());
  if (found) return record(found);
  throw new MissingPrerequisite(
    `a Python with ${MODULES.join(", ")} is missing, and none could be made: ` +
      "install Python with its module venv (Debian: `sudo apt-get install python3 python3-venv`) and run set-up again, " +
      "or set COPPICE_PYTHON to an interpreter that can import them.",
  );
}
