import { join } from "node:path";
import { build, prepare } from "./prepare.mjs";
import { runInForeground } from "./foreground.mjs";
import { ROOT } from "./project.mjs";
import { releaseSetupLock } from "./setup-lock.mjs";

/**
 * Sets up and compiles what is missing, then runs a program of the project under the Node that set-up fetched.
 * @param program its path from the root of the project.
 * @returns its exit code.
 */
export async function runBuilt(
  program,
  parameters = [],
  { nodeOptions = [], environment = {}, ensureHostPackages } = {},
) {
  const toolchain = await prepare({ ensureHostPackages });
  await build(toolchain);
  releaseSetupLock();
  return runInForeground(toolchain.node, [...nodeOptions, join(ROOT, program), ...parameters], {
    cwd: ROOT,
    env: { ...toolchain.environment, ...environment },
  });
}
