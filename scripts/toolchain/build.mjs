import { join } from "node:path";
import { ROOT } from "./project.mjs";
import { mustRunStep } from "./step.mjs";

const COMPILER = join(ROOT, "node_modules", "typescript", "bin", "tsc");

/** Compiles what changed. */
export function build(toolchain) {
  return mustRunStep("the TypeScript build", toolchain.node, [COMPILER, "-b"], {
    env: toolchain.environment,
  });
}

/** Removes everything compiled: an incremental build keeps the output of a deleted test. */
export function cleanBuild(toolchain) {
  const parameters = [COMPILER, "-b", "--clean"];
  return mustRunStep("cleaning the build", toolchain.node, parameters, { env: toolchain.environment });
}
