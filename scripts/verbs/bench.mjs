import { runBuilt } from "../toolchain/run-built.mjs";

/** Measures a running server over HTTP. */
export const run = (parameters) => runBuilt("bench/dist/run.js", parameters);
