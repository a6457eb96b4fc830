import { SandboxError, type Sandbox } from "@coppice/core";

/** A loopback answers at once; only a full backlog, or a machine with no time to spare, takes longer. */
const LONGEST_ANSWER_MS = 1000;

/**
 * True when a program in the sandbox listens on any of these ports. A port that does not answer within a second is
 * listened on: nobody refused.
 * @throws the signal's reason, or what `dial` throws when it cannot tell, as unavailable for a sandbox that has ended.
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
  const late = AbortSignal.timeout(LONGEST_ANSWER_MS);
  try {
    const stream = await sandbox.dial(port, AbortSignal.any([signal, late]));
    // The listener may break it before it is closed here.
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
