import { SandboxError } from "@coppice/core";
import { REASONS } from "../reasons.js";

/** The failure of a kernel that did not start, with what it wrote. */
export class KernelStartError extends SandboxError {
  /** The end of its output, for the log: clients get its last line, in the message. */
  readonly output: string;

  constructor(message: string, output: string) {
    super(REASONS.kernel_start_failed, message);
    this.output = output;
  }
}

/** Adds the output to a failure to start, where it has none yet; returns other errors as they are. */
export function withOutput(error: unknown, output: string): unknown {
  const lacksOutput = error instanceof SandboxError && !(error instanceof KernelStartError);
  if (!lacksOutput || error.reason !== REASONS.kernel_start_failed.reason) return error;
  return new KernelStartError(error.message, output);
}
