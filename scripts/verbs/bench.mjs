import { join } from "node:path";
import { build } from "../toolchain/build.mjs";
import { prepare } from "../toolchain/prepare.mjs";
import { ROOT } from "../toolchain/project.mjs";
import { runInForeground } from "../toolchain/foreground.mjs";

/** Measures a running server over HTTP. */
export async function run(parameters) {
  const toolchain = await prepare();
  await build(toolchain);
  const program = join(ROOT, "test", "dist", "bench", "run.js");
  return runInForeground(toolchain.node, [program, ...parameters], { cwd: ROOT, env: toolchain.environment });
}
