import { join } from "node:path";
import { build } from "../toolchain/build.mjs";
import { runInForeground } from "../toolchain/foreground.mjs";
import { prepare } from "../toolchain/prepare.mjs";
import { ROOT } from "../toolchain/project.mjs";

/** Serves `config/development.yaml`, or the configuration that is named. */
export async function run([config = join(ROOT, "config", "development.yaml"), ...more]) {
  const toolchain = await prepare();
  await build(toolchain);
  const program = join(ROOT, "core", "bin", "coppice.mjs");
  // From where npm was called: that is where the caller's relative path starts.
  const cwd = process.env.INIT_CWD ?? process.cwd();
  return runInForeground(toolchain.node, [program, "start", config, ...more], {
    cwd,
    env: toolchain.environment,
  });
}
