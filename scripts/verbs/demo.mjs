import { runBuilt } from "../toolchain/run-built.mjs";
import { ensureStartPackages } from "../toolchain/start-packages.mjs";

/** Runs the quickstart of examples/ against a server that it starts, and builds a template as `npm start` does. */
export const run = () => runBuilt("scripts/demo.mjs", [], { ensureHostPackages: ensureStartPackages });
