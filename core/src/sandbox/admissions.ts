import { createToken } from "../kernel/token.js";
import type { SandboxRecord } from "./live-sandbox.js";

/**
 * Lets a sandbox be made by returning, keeps it from being made by throwing a SandboxError. Called at once with the
 * decision, before the next creation is looked at: what it counts cannot be overtaken.
 * @param wanted the record that it would have.
 * @param existing those of the same owner: being made, serving, paused, and being ended until nothing is left.
 */
export type AdmissionCheck = (wanted: SandboxRecord, existing: readonly SandboxRecord[]) => void;

/** Who may have one more sandbox. */
export interface Admissions {
  /** Asked before every creation, in the order they were added. */
  add(check: AdmissionCheck): void;
}

export const Admissions = createToken<Admissions>("admissions");
