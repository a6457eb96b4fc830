import { build } from "../toolchain/build.mjs";
import { prepare } from "../toolchain/prepare.mjs";

/** Fetches and builds everything that is missing. */
export async function run() {
  const toolchain = await prepare();
  await build(toolchain);
  const python = toolchain.environment.COPPICE_PYTHON ?? "of the templates";
  console.log(`Ready: node ${toolchain.node}, python ${python}`);
}
