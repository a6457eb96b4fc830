import { randomInt } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { SandboxError } from "@coppice/core";
import { REASONS } from "../reasons.js";

/** Commits that other servers may forestall: each of them has made something for the same tenant then. */
const ATTEMPTS = 100;
const MAX_PAUSE_MS = 100;

/** Repeats what reads and commits until no other server has come between. @throws SandboxError, or as `attempt` */
export async function untilCommitted(attempt: () => Promise<boolean>): Promise<void> {
  for (let count = 1; count <= ATTEMPTS; count += 1) {
    if (await attempt()) return;
    // Unequal times: servers that were in each other's way would be so again.
    await pause(randomInt(Math.min(2 ** count, MAX_PAUSE_MS)));
  }
  throw contradicted();
}

export function contradicted(): SandboxError {
  return new SandboxError(
    REASONS.fleet_unavailable,
    "other servers of the fleet have changed the record meanwhile, please retry",
  );
}
