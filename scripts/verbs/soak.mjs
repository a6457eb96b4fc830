import { runBuilt } from "../toolchain/run-built.mjs";

/** Puts a server under mixed load, and reports failures and leftovers. */
export const run = (parameters) => runBuilt("test/dist/soak/run.js", parameters);
