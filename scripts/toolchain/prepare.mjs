import { ensureAgent } from "./agent.mjs";
import { environmentFor, ensureNode } from "./node.mjs";
import { ensurePackages } from "./packages.mjs";
import { ensurePython } from "./python.mjs";

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

/** Results of steps that run beside each other: mostly they wait for the network. A failure is told when all have ended. */
async function allOf(steps) {
  const results = await Promise.allSettled(steps);
  const failed = results.find(({ status }) => status === "rejected");
  if (failed !== undefined) throw failed.reason;
  return results.map(({ value }) => value);
}
