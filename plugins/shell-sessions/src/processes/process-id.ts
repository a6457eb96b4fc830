import { randomInt } from "node:crypto";

/** An id as the original system makes them. */
export function newProcessId(): string {
  return `proc_${Date.now()}_${randomInt(36 ** 6)
    .toString(36)
    .padStart(6, "0")}`;
}
