import assert from "node:assert/strict";
import { join } from "node:path";
import type { Sandbox } from "@coppice/core/backend";
import { readInit, sandboxPaths } from "../launcher/sandbox-record.js";

/** Signals the first process of a sandbox from the host; when it ends, the kernel kills the others with it. */
export async function endInit(
  directory: string,
  { id }: Pick<Sandbox, "id">,
  signal: "SIGKILL" | "SIGTERM" = "SIGKILL",
): Promise<void> {
  const init = await readInit(sandboxPaths(join(directory, "sandboxes", id)));
  assert.ok(init, `sandbox ${id} has no first process`);
  process.kill(init.pid, signal);
}
