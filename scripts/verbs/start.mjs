import { join, resolve } from "node:path";
import { ROOT } from "../toolchain/project.mjs";
import { runBuilt } from "../toolchain/run-built.mjs";
import { ensureStartPackages } from "../toolchain/start-packages.mjs";

/** Young objects in 2 MiB at a time: less memory and shorter pauses, see docs/measurements.md. */
const NODE_OPTIONS = ["--max-semi-space-size=4"];
/** The C library has one heap, in place of one for each thread; see there, too. */
const ENVIRONMENT = { MALLOC_ARENA_MAX: "1" };

/** Serves `config/development.yaml`, or the configuration that is named. */
export async function run([config, ...more]) {
  // npm changes to the root of the project; the path is relative to npm's first directory.
  const from = process.env.INIT_CWD ?? process.cwd();
  const path = config === undefined ? join(ROOT, "config", "development.yaml") : resolve(from, config);
  const isTrial = config === undefined;
  const options = {
    nodeOptions: NODE_OPTIONS,
    environment: ENVIRONMENT,
    ...(isTrial && { ensureHostPackages: ensureStartPackages }),
  };
  return runBuilt("core/bin/coppice.mjs", ["start", path, ...more], options);
}
