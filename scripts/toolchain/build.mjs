import { rm } from "node:fs/promises";
import { join } from "node:path";
import { ROOT, workspaces } from "./project.mjs";
import { mustRunStep, told } from "./step.mjs";

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
