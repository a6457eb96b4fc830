import { mkdir, rm, writeFile, readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { MissingPrerequisite, NPM_MISSING, TOOLCHAIN, ROOT } from "./project.mjs";
import { outputOf, runStepAgain, told, FailedStep } from "./step.mjs";

/** Node release to fetch: Node 24 LTS, which the tests run on. */
const TARGET_VERSION = "24.21.0";
/** Minimum that the packages accept, set by @connectrpc/connect-node and chokidar. */
const OLDEST_VERSION = "22.22.0";

const FOLDER = join(TOOLCHAIN, "node");
const PACKAGE = join(FOLDER, "node_modules", "node");
const FETCHED = join(PACKAGE, "bin", "node");

function isNewEnough(version) {
  const have = version.replace(/^v/, "").split(".").map(Number);
  const need = OLDEST_VERSION.split(".").map(Number);
  for (const [index, part] of need.entries()) if (have[index] !== part) return have[index] > part;
  return true;
}

/** The fetched Node, if it is there and runs. */
function fetchedVersion() {
  return outputOf(FETCHED, ["--version"]);
}

async function fetchNode() {
  await rm(FOLDER, { recursive: true, force: true });
  await mkdir(FOLDER, { recursive: true });
  await writeFile(
    join(FOLDER, "package.json"),
    JSON.stringify({ private: true, dependencies: { node: TARGET_VERSION } }),
  );
  // npm's majors disagree on whether a dependency's install script may run. This one does the actual
  // fetching, so it is kept from npm and started here, the same way under each of them.
  const flags = ["--ignore-scripts", "--no-save", "--no-audit", "--no-fund", "--loglevel=error"];
  const installed = await runStepAgain("fetching Node", "npm", ["install", ...flags], { cwd: FOLDER });
  if (installed === 127) throw new MissingPrerequisite(NPM_MISSING);
  if (installed !== 0) return;
  await runStepAgain("fetching Node", process.execPath, ["installArchSpecificPackage.js"], { cwd: PACKAGE });
}

/**
 * A Node that is new enough: the running one, or the one in `.toolchain/node`, fetched when it is not there.
 * @returns the path of its executable.
 */
export async function ensureNode() {
  if (isNewEnough(process.version)) return process.execPath;
  if (process.platform === "freebsd") {
    // npm has no binaries of Node for it.
    throw new MissingPrerequisite(
      `Node ${process.version} is older than ${OLDEST_VERSION}: install a newer one with \`pkg install node24 npm-node24\`.`,
    );
  }
  if (fetchedVersion() !== `v${TARGET_VERSION}`) {
    await told(
      `Node ${process.version} is older than ${OLDEST_VERSION}: fetching ${TARGET_VERSION}`,
      fetchNode,
    );
    if (fetchedVersion() === undefined) {
      throw new MissingPrerequisite(
        `Node ${OLDEST_VERSION} or newer is missing and npm could not fetch it for ` +
          `${process.platform}-${process.arch}: install Node 24 and put it first on PATH.`,
      );
    }
  }
  return FETCHED;
}

/** Environment in which `node`, `npm` and their child processes are that Node. */
export function environmentFor(node) {
  return { ...process.env, PATH: `${dirname(node)}:${process.env.PATH ?? ""}` };
}

const ZEROMQ_BINARIES = join(ROOT, "node_modules", "zeromq", "build");

async function lockedPackages(path) {
  try {
    return JSON.parse(await readFile(path, "utf8")).packages;
  } catch {
    return undefined;
  }
}

/**
 * True when node_modules matches package-lock.json. npm writes its record as the last step, so an interrupted
 * installation does not count.
 */
async function arePackagesInstalled() {
  const wanted = await lockedPackages(join(ROOT, "package-lock.json"));
  const installed = await lockedPackages(join(ROOT, "node_modules", ".package-lock.json"));
  if (wanted === undefined || installed === undefined) return false;
  return Object.entries(wanted).every(([path, entry]) => {
    const found = installed[path];
    // npm installs only those optional packages that suit this platform.
    if (path === "" || (found === undefined && entry.optional === true)) return true;
    return found !== undefined && found.version === entry.version && found.link === entry.link;
  });
}

/** Installs the npm packages exactly as locked, unless they are there. */
export async function ensurePackages(node) {
  if (await arePackagesInstalled()) return;
  const flags = ["--no-audit", "--no-fund", "--loglevel=error"];
  // zeromq has no binary for FreeBSD and would build itself with vcpkg. Kernels are spoken to without it.
  if (process.platform === "freebsd") flags.push("--ignore-scripts");
  const install = () => runStepAgain("npm ci", "npm", ["ci", ...flags], { env: environmentFor(node) });
  const code = await told("Installing npm packages", install);
  if (code === 127) throw new MissingPrerequisite(NPM_MISSING);
  if (code !== 0) throw new FailedStep("npm ci failed: its message above says why");
  // The package contains binaries of other systems.
  if (process.platform === "freebsd") await rm(ZEROMQ_BINARIES, { recursive: true, force: true });
}
