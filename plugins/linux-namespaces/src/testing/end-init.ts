import assert from "node:assert/strict";
import { join } from "node:path";
import type { Sandbox } from "@coppice/core/backend";
import { readInit, sandboxPaths } from "../launcher/sandbox-record.js";

/** Kills the first process of a sandbox; the kernel kills the others with it. */
export async function endInit(directory: string, { id }: Pick<Sandbox, "id">): Promise<void> {
  const init = await readInit(sandboxPaths(join(directory, "sandboxes", id)));
  assert.ok(init, `sandbox ${id} has no first process`);
  process.kill(init.pid, "SIGKILL");
}
