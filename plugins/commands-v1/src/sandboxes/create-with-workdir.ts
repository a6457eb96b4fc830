import {
  type CreateSandbox,
  type LiveSandbox,
  messageOf,
  SandboxError,
  type Sandboxes,
  ignoring,
} from "@coppice/core";
import { REASONS } from "../reasons.js";

/**
 * Creates a sandbox with the directory in which its commands start; without that nothing of the sandbox is kept.
 * @throws SandboxError unavailable when the directory cannot be made; the errors of `Sandboxes.create`.
 */
export async function createWithWorkdir(
  sandboxes: Pick<Sandboxes, "create" | "kill">,
  wanted: CreateSandbox,
  { workdir, signal }: { readonly workdir: string; readonly signal?: AbortSignal | undefined },
): Promise<LiveSandbox> {
  const sandbox = await sandboxes.create(wanted, signal);
  try {
    await makeWorkdir(sandbox, workdir);
    return sandbox;
  } catch (error) {
    await sandboxes.kill(sandbox.record.id).catch(() => undefined);
    const text = `${workdir} could not be made: ${messageOf(error)}`;
    throw new SandboxError(REASONS.sandbox_setup_failed, text, { cause: error });
  }
}

export async function makeWorkdir({ runtime }: LiveSandbox, workdir: string): Promise<void> {
  await runtime.files.makeDir(workdir).catch(ignoring("already_exists"));
}
