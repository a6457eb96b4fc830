import { createToken } from "../../kernel/token.js";
import type { SandboxRecord } from "./live-sandbox.js";

/**
 * Lets a sandbox be made, or have more, by returning; keeps it from that by throwing a SandboxError. Called at once
 * with the decision, before the next one is looked at: what it counts cannot be overtaken.
 * @param wanted the record that it would have; its state is `creating` unless it is one that is to have more.
 * @param existing the others of the same owner: being made, serving, paused, and being ended until nothing is left.
 */
export type AdmissionCheck = (wanted: SandboxRecord, existing: readonly SandboxRecord[]) => void;

/** Checks that are asked before a sandbox is created or grows. */
export interface Admissions {
  /** Asked before every creation and before limits are raised, in the order they were added. */
  add(check: AdmissionCheck): void;
}

export const Admissions = createToken<Admissions>("admissions");
