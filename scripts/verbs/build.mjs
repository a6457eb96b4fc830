import { build } from "../toolchain/build.mjs";
import { prepare } from "../toolchain/prepare.mjs";

/** Compiles the sources that have changed. */
export async function run() {
  await build(await prepare({ needsPython: false }));
}
