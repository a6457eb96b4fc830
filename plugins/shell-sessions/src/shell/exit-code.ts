import { constants } from "node:os";
import type { Exit } from "@coppice/core/backend";

/** As bash has it: 128 and the number of the signal. */
export function exitCodeOf({ code, signal }: Exit): number {
  return code ?? 128 + constants.signals[signal];
}
