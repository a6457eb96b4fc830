import { format, requireBinary } from "../toolchain/lint.mjs";
import { prepare } from "../toolchain/prepare.mjs";

/** Formats every file, or the paths that are named. */
export async function run(paths) {
  requireBinary("the formatter", ["x64"]);
  await format(await prepare({ needsPython: false }), paths);
}
