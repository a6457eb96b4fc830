import type { LiveSandbox, Sandboxes } from "@coppice/core";
import type { NamedSandbox } from "../store/commands-v1-store.js";

/** Stops a sandbox: its processes end. A persistent one keeps its files, an ephemeral one is deleted. */
export async function stopSandbox(
  sandboxes: Pick<Sandboxes, "kill" | "pause">,
  { record }: LiveSandbox,
  tier: NamedSandbox["tier"],
): Promise<void> {
  if (tier === "ephemeral") await sandboxes.kill(record.id);
  else if (record.state !== "paused") await sandboxes.pause(record.id, { keepsMemory: false });
}
