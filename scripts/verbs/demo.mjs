import { join } from "node:path";
import { build } from "../toolchain/build.mjs";
import { runInForeground } from "../toolchain/foreground.mjs";
import { prepare } from "../toolchain/prepare.mjs";
import { ROOT } from "../toolchain/project.mjs";

/** Runs the quickstart of examples/ against a server of its own. */
export async function run() {
  const toolchain = await prepare();
  await build(toolchain);
  return runInForeground(toolchain.node, [join(ROOT, "scripts", "demo.mjs")], {
    cwd: ROOT,
    env: toolchain.environment,
  });
}
