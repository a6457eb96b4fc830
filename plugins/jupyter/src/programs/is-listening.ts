import { SandboxError } from "@coppice/core";
import type { Sandbox } from "@coppice/core/backend";

/** A loopback answers at once, unless its backlog is full or the machine is overloaded. */
const MAX_ANSWER_MS = 1000;

/**
 * True when a program in the sandbox listens on any of these ports. A port without an answer within a second counts as
 * used: it was not refused.
 * @throws the signal's reason, or the error of `dial` when it cannot tell, such as unavailable for an ended sandbox.
 */
export async function isListening(
  sandbox: Pick<Sandbox, "dial">,
  ports: readonly number[],
  signal: AbortSignal,
): Promise<boolean> {
  const answers = await Promise.all(ports.map((port) => isTaken(sandbox, port, signal)));
  return answers.includes(true);
}

async function isTaken(sandbox: Pick<Sandbox, "dial">, port: number, signal: AbortSignal): Promise<boolean> {
  const late = AbortSignal.timeout(MAX_ANSWER_MS);
  try {
    const stream = await sandbox.dial(port, AbortSignal.any([signal, late]));
    // The listener may close the stream first.
    stream.on("error", () => undefined);
    stream.destroy();
    return true;
  } catch (error) {
    // First, because its reason may look like a refusal.
    signal.throwIfAborted();
    if (late.aborted) return true;
    if (error instanceof SandboxError && error.code === "failed_precondition") return false;
    throw error;
  }
}
