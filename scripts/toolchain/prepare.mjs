import { rm } from "node:fs/promises";
import { join } from "node:path";
import { ensureAgent } from "./agent.mjs";
import { environmentFor, ensureNode, ensurePackages } from "./node.mjs";
import { ensurePython } from "./python.mjs";
import { ROOT, workspaces } from "./project.mjs";
import { allOf, mustRunStep, told } from "./step.mjs";

/**
 * Fetches Node, the npm packages and, unless `needsPython` is false, a Python for the code interpreter, and builds
 * the agent. `ensureHostPackages` installs further packages of the system. Does only what is missing. On FreeBSD the
 * interpreter is that of the templates: PyPI has no binaries of numpy and others for it.
 * @returns `node`, the path of the executable, and `environment`, for programs under it.
 */
export async function prepare({
  needsPython = process.platform !== "freebsd",
  ensureHostPackages = async () => undefined,
} = {}) {
  // Mostly they wait for the network.
  const [node, , python] = await allOf([
    packagesOfNode(),
    // apt-get runs one at a time.
    ensureAgent().then(ensureHostPackages),
    needsPython ? ensurePython() : undefined,
  ]);
  const environment = environmentFor(node);
  if (needsPython) environment.COPPICE_PYTHON = python;
  return { node, environment };
}

async function packagesOfNode() {
  const node = await ensureNode();
  await ensurePackages(node);
  return node;
}

const COMPILER = join(ROOT, "node_modules", "typescript", "bin", "tsc");

/** Compiles the sources that have changed. */
export function build(toolchain) {
  const options = { env: toolchain.environment };
  return told("Compiling what changed", () =>
    mustRunStep("the TypeScript build", toolchain.node, [COMPILER, "-b"], options),
  );
}

/** Removes everything compiled. `tsc -b --clean` would leave the output of a test that was deleted. */
export async function cleanBuild() {
  for (const folder of await workspaces()) {
    await rm(join(ROOT, folder, "dist"), { recursive: true, force: true });
    await rm(join(ROOT, folder, "tsconfig.tsbuildinfo"), { force: true });
  }
}
