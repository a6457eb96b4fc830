import { mkdir, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { MissingPrerequisite, NPM_MISSING } from "./missing-prerequisite.mjs";
import { TOOLCHAIN } from "./project.mjs";
import { outputOf, runStepAgain, told } from "./step.mjs";

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
  for (const [index, part] of need.entries()) {
    if (have[index] !== part) return have[index] > part;
  }
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
  if (installed === 127) {
    throw new MissingPrerequisite(NPM_MISSING);
  }
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
