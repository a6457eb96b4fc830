import { runBuilt } from "../toolchain/run-built.mjs";

/** Runs the quickstart of examples/ against a server that it starts. */
export const run = () => runBuilt("scripts/demo.mjs");
