import { ensureAgent } from "./agent.mjs";
import { environmentFor, ensureNode } from "./node.mjs";
import { ensurePackages } from "./packages.mjs";
import { ensurePython } from "./python.mjs";

/**
 * Fetches Node, the npm packages and, unless `needsPython` is false, a Python for the code interpreter, and builds
 * the agent. Does only what is missing. On FreeBSD the interpreter is that of the templates: PyPI has no binaries
 * of numpy and others for it.
 * @returns `node`, the path of the executable, and `environment`, for programs under it.
 */
export async function prepare({ needsPython = process.platform !== "freebsd" } = {}) {
  const node = await ensureNode();
  await ensurePackages(node);
  await ensureAgent();
  const environment = environmentFor(node);
  if (needsPython) environment.COPPICE_PYTHON = await ensurePython();
  return { node, environment };
}
