import { join } from "node:path";
import { build } from "../toolchain/build.mjs";
import { runInForeground } from "../toolchain/foreground.mjs";
import { prepare } from "../toolchain/prepare.mjs";
import { ROOT } from "../toolchain/project.mjs";

/** Puts a server of its own under mixed load and tells what is wrong or left afterwards. */
export async function run(parameters) {
  const toolchain = await prepare();
  await build(toolchain);
  const program = join(ROOT, "test", "dist", "soak", "run.js");
  return runInForeground(toolchain.node, [program, ...parameters], { cwd: ROOT, env: toolchain.environment });
}
