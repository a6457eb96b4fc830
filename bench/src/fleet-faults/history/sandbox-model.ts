import type { Action } from "./operation.js";

/** A sandbox, as a client may imagine it: not yet made, running with a counter, or ended for good. */
export type SandboxState = "unmade" | "ended" | number;

/**
 * The state after an operation; undefined when it cannot have happened in this state. An end comes by itself, too: a
 * sandbox may be lost with its server, but it cannot come back.
 */
export function afterAction(state: SandboxState, action: Action): SandboxState | undefined {
  const isRunning = typeof state === "number";
  switch (action.kind) {
    case "create":
      return state === "unmade" ? 0 : undefined;
    case "increment":
      if (!isRunning) return undefined;
      return action.value === undefined || action.value === state + 1 ? state + 1 : undefined;
    case "read":
      return state === action.value ? state : undefined;
    case "there":
      return isRunning ? state : undefined;
    case "gone":
      return isRunning ? "ended" : state;
    case "kill":
      // Of two at one time both are told that it has ended.
      return state === "unmade" ? undefined : "ended";
  }
}
