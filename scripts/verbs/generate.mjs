import { existsSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { build } from "../toolchain/build.mjs";
import { completeLockfile } from "../toolchain/complete-lockfile.mjs";
import { checkManuals, checkInterface, requireBinary } from "../toolchain/lint.mjs";
import { prepare } from "../toolchain/prepare.mjs";
import { ROOT } from "../toolchain/project.mjs";
import { mustRunStep } from "../toolchain/step.mjs";

const BUF = join(ROOT, "node_modules", "@bufbuild", "buf", "bin", "buf");

/**
 * Writes the generated files that are committed: protobuf code, core's interface reports, the manual and the schema
 * of the configuration, the catalogue of errors, and the missing entries of the lock file.
 */
export async function run() {
  requireBinary("buf");
  const toolchain = await prepare({ needsPython: false });
  const environment = { ...toolchain.environment };
  environment.PATH = `${join(ROOT, "node_modules", ".bin")}:${environment.PATH}`;
  for (const name of await readdir(join(ROOT, "plugins"))) {
    const cwd = join(ROOT, "plugins", name);
    if (!existsSync(join(cwd, "buf.gen.yaml"))) continue;
    await mustRunStep(`buf generate in plugins/${name}`, toolchain.node, [BUF, "generate"], {
      cwd,
      env: environment,
    });
  }
  await completeLockfile();
  await build(toolchain);
  await checkInterface(toolchain, true);
  await checkManuals(toolchain, true);
}
