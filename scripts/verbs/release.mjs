import { join } from "node:path";
import { runInForeground } from "../toolchain/foreground.mjs";
import { build, cleanBuild, prepare } from "../toolchain/prepare.mjs";
import { ROOT } from "../toolchain/project.mjs";

/** Makes the files of a release in `release`. Publishing them is not for a checkout. */
export async function run(parameters) {
  const isUsual = ["--dry", "--dry --templates"].includes(parameters.join(" "));
  if (!isUsual) {
    console.error(
      "usage: npm run release -- --dry [--templates]   (writes the files into `release`, and publishes nothing; " +
        "images of the templates take root, some minutes and the archives of their packages)",
    );
    return 64;
  }
  const toolchain = await prepare({ needsPython: false });
  await cleanBuild();
  await build(toolchain);
  const make = join(ROOT, "scripts", "release", "make.mjs");
  return runInForeground(toolchain.node, [make, ...parameters], { cwd: ROOT, env: toolchain.environment });
}
