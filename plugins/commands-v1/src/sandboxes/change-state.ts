import type { LiveSandbox, Sandboxes } from "@coppice/core";
import type { Tier } from "./sandbox-store.js";

/** Stops a sandbox: its processes end. A persistent one keeps its files, an ephemeral one is deleted. */
export async function stopSandbox(
  sandboxes: Pick<Sandboxes, "kill" | "pause">,
  { record }: LiveSandbox,
  tier: Tier,
): Promise<void> {
  if (tier === "ephemeral") await sandboxes.kill(record.id);
  else if (record.state !== "paused") await sandboxes.pause(record.id, { keepsMemory: false });
}
