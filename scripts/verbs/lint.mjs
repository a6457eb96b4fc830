import { build } from "../toolchain/build.mjs";
import { lint } from "../toolchain/lint.mjs";
import { prepare } from "../toolchain/prepare.mjs";

/** Checks for bugs, crossed boundaries, unformatted files and unrecorded changes of the public interface. */
export async function run(parameters) {
  const toolchain = await prepare({ needsPython: false });
  await build(toolchain);
  await lint(toolchain, parameters);
}
