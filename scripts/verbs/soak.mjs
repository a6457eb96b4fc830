import { runBuilt } from "../toolchain/run-built.mjs";

/** Puts a server under mixed load, or a fleet under faults, and reports failures and leftovers. */
export const run = ([first, ...rest]) =>
  first === "fleet"
    ? runBuilt("bench/dist/fleet-faults/run.js", rest)
    : runBuilt("bench/dist/soak/run.js", first === undefined ? [] : [first, ...rest]);
