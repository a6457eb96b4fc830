import { ensureAgent } from "./agent.mjs";
import { environmentFor, ensureNode } from "./node.mjs";
import { ensurePackages } from "./packages.mjs";
import { ensurePython } from "./python.mjs";
import { allOf } from "./step.mjs";

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
