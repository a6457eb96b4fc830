import { existsSync } from "node:fs";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { canInstallDebianPackages, installDebianPackages } from "./apt.mjs";
import { MissingPrerequisite } from "./missing-prerequisite.mjs";
import { TOOLCHAIN } from "./project.mjs";
import { outputOf, runStep, told } from "./step.mjs";

const MODULES = ["ipykernel", "numpy", "pandas", "matplotlib"];
const DEBIAN_PACKAGES = MODULES.map((name) => `python3-${name}`);
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

async function recorded() {
  try {
    const record = JSON.parse(await readFile(RECORD, "utf8"));
    return typeof record.interpreter === "string" ? record : undefined;
  } catch {
    return undefined;
  }
}

async function record(found) {
  await mkdir(TOOLCHAIN, { recursive: true });
  await writeFile(RECORD, `${JSON.stringify(found, undefined, 2)}\n`);
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
  // Without ensurepip (Debian: python3-venv) the venv module leaves half a folder behind.
  if (outputOf(base, ["-c", "import venv, ensurepip"]) === undefined) return undefined;
  return told(`Installing ${MODULES.join(", ")} into a venv of ${base}`, () => fillVenv(base));
}

async function fillVenv(base) {
  await rm(VENV, { recursive: true, force: true });
  const pip = [
    VENV_PYTHON,
    ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS],
  ];
  const isMade =
    (await runStep(base, ["-m", "venv", VENV])) === 0 && (await runStep(...pip)) === 0 && probe(VENV_PYTHON);
  if (isMade) return isMade;
  await rm(VENV, { recursive: true, force: true });
  return undefined;
}

async function debianPython() {
  if (!canInstallDebianPackages()) return undefined;
  await installDebianPackages(DEBIAN_PACKAGES);
  return probe("/usr/bin/python3");
}

function existingPython() {
  // A venv of an earlier set-up, then the system's, then whatever PATH has: the first two can be mounted
  // into a sandbox, the third may live in a home directory.
  for (const candidate of [VENV_PYTHON, "/usr/bin/python3", "python3"]) {
    const found = probe(candidate);
    if (found) return found;
  }
  return undefined;
}

/**
 * A Python that can run notebooks: an existing one, else a venv, else Debian's packages.
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
  if (known !== undefined && existsSync(known.interpreter)) return known.interpreter;
  const found = existingPython() ?? (await makeVenv()) ?? (await debianPython());
  if (found) return record(found);
  throw new MissingPrerequisite(
    `a Python with ${MODULES.join(", ")} is missing: run \`sudo apt-get install ${DEBIAN_PACKAGES.join(" ")}\`, ` +
      "or set COPPICE_PYTHON to an interpreter that can import them.",
  );
}
