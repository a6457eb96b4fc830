import { readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { MissingPrerequisite, NPM_MISSING } from "./missing-prerequisite.mjs";
import { environmentFor } from "./node.mjs";
import { ROOT } from "./project.mjs";
import { FailedStep, runStepAgain, told } from "./step.mjs";

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
  if (code === 127) {
    throw new MissingPrerequisite(NPM_MISSING);
  }
  if (code !== 0) throw new FailedStep("npm ci failed: its message above says why");
  // The package contains binaries of other systems.
  if (process.platform === "freebsd") await rm(ZEROMQ_BINARIES, { recursive: true, force: true });
}
