import { createToken } from "../../kernel/token.js";
import type { SandboxRecord } from "./live-sandbox.js";

/**
 * Admits a new sandbox, or higher limits, by returning; refuses by throwing a SandboxError. Runs synchronously before
 * the next decision, so no other creation can slip in.
 * @param wanted the resulting record; in the state `creating`, unless limits of an existing one are raised.
 * @param existing the owner's other sandboxes, until they are completely removed.
 */
export type AdmissionCheck = (wanted: SandboxRecord, existing: readonly SandboxRecord[]) => void;

/** Checks that run before a sandbox is created or its limits are raised. */
export interface Admissions {
  /** Adds a check; checks run in the order they were added. */
  add(check: AdmissionCheck): void;
}

export const Admissions = createToken<Admissions>("admissions");
