import assert from "node:assert/strict";
import type { Sandbox } from "@coppice/core/backend";
import type { ConformanceContext } from "./conformance-context.js";

/**
 * Fails a case that would harm a host from which the sandbox is not isolated.
 * @throws AssertionError when the sandbox sees files or processes of the host.
 */
export async function requireApart(
  context: ConformanceContext,
  sandbox: Sandbox = context.sandbox,
): Promise<void> {
  const canary = await context.canary();
  const { stdout } = await context.shell('cat "$1"; cat "/proc/$2/cmdline"', {
    in: sandbox,
    user: "root",
    args: [canary.file, String(process.pid)],
  });
  const isApart = !stdout.includes(canary.secret) && !stdout.includes(process.execPath);
  assert.ok(isApart, "it sees files or processes of the host: not tried, it would hurt the host");
}
