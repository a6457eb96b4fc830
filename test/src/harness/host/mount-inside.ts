import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Sandbox } from "e2b";
import { eventually, type TestServer } from "@coppice/core/testing";
import { runningProcesses } from "./running-processes.js";

const PROGRAM = fileURLToPath(new URL("../../../fixtures/mount-inside.py", import.meta.url));

export interface MountInside {
  /** Type for mount(8). `fuse` is an empty directory of a server on this host. */
  readonly type: "fuse" | "tmpfs";
  /** A directory inside the sandbox, which is made. */
  readonly path: string;
  /** As mount(8) has them. */
  readonly options?: string;
}

/**
 * Reason why nothing can be mounted in sandboxes from outside; false when it can.
 * @throws Error for such a reason in CI.
 */
export function reasonWithoutMounts(): string | false {
  const missing =
    process.platform !== "linux"
      ? "mounting inside sandboxes needs Linux"
      : process.getuid?.() !== 0
        ? "mounting inside sandboxes needs root"
        : existsSync("/dev/fuse")
          ? false
          : "there is no /dev/fuse";
  if (missing !== false && process.env["CI"] === "true") throw new Error(missing);
  return missing;
}

/** Mounts a file system in a sandbox of any backend from outside, until disposal. */
export async function mountInside(
  server: TestServer,
  sandbox: Sandbox,
  { type, path, options = "" }: MountInside,
): Promise<AsyncDisposable> {
  await sandbox.files.makeDir(path);
  const { files } = server.sandboxes.get(sandbox.sandboxId).runtime;
  const target = (await files.hostPath?.(path)) ?? path;
  // A marked process inside shows the host the mount namespace, whatever the backend.
  const mark = randomUUID();
  const inside = await sandbox.commands.run(`exec -a ${mark} sleep 60`, { background: true });
  try {
    const pid = await eventually("the process is seen", async () => {
      const found = await runningProcesses(mark);
      return found.find(({ commandLine }) => commandLine.startsWith(mark))?.pid;
    });
    const stdio = ["pipe", "pipe", "inherit"] as const;
    const program = spawn("python3", [PROGRAM, String(pid), type, target, options], { stdio: [...stdio] });
    const ended = once(program, "exit");
    const [said] = (await Promise.race([once(program.stdout, "data"), ended])) as [unknown];
    assert.equal(String(said), "mounted\n");
    return {
      async [Symbol.asyncDispose]() {
        program.stdin.end();
        assert.deepEqual(await ended, [0, null]);
      },
    };
  } finally {
    await inside.kill();
  }
}
