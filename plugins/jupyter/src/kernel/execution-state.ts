import type { KernelMessage } from "../transport/wire.js";

const EXECUTION_STATE = /^\s*\{\s*"execution_state"\s*:\s*"(busy|idle)"\s*\}\s*$/;

/** State of a `status` message; undefined for other messages and for states without a request. */
export function executionStateOf({ type, content }: KernelMessage): "busy" | "idle" | undefined {
  if (type !== "status" || content.length >= 256) return undefined;
  return EXECUTION_STATE.exec(content.toString("latin1"))?.[1] as "busy" | "idle" | undefined;
}
