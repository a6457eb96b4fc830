import { type Logger, SandboxError, MEBIBYTE } from "@coppice/core";
import type { FullLimits } from "@coppice/core/backend";
import type { Opened } from "./open-host.js";
import { limitsText } from "./zfs/stored-facts.js";

/** Replaces all limits of a running sandbox at once. @throws SandboxError failed_precondition when it uses more. */
export async function resizeSandbox(
  { datasets, rules, usage }: Opened,
  sandbox: {
    readonly name: string;
    readonly wanted: FullLimits;
    readonly before: FullLimits;
    readonly log: Logger;
  },
): Promise<FullLimits> {
  const { before, log, name, wanted } = sandbox;
  const { memoryBytes = 0 } = (await usage.of(name)) ?? {};
  if (memoryBytes > wanted.memoryMiB * MEBIBYTE) {
    throw new SandboxError("limits_below_use", "the sandbox uses more memory than that");
  }
  try {
    if (wanted.diskMiB !== before.diskMiB) await datasets.limit(name, wanted.diskMiB);
    await rules?.set(name, wanted);
    await datasets.set(name, "limits", limitsText(wanted));
  } catch (error) {
    await datasets
      .limit(name, before.diskMiB)
      .then(() => rules?.set(name, before))
      .catch((failure: unknown) => {
        log.error({ sandbox: name, err: failure }, "limits of the sandbox were changed in part");
      });
    throw error;
  }
  return wanted;
}
