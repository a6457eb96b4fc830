import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { withoutRoot } from "./agent-kinds.js";

const PROGRAM = fileURLToPath(new URL("../../../test/fixtures/mount-inside.py", import.meta.url));

/** Reason why tests that mount cannot run, or false. */
export const withoutMounts: string | false =
  withoutRoot ||
  (process.platform === "linux" && existsSync("/dev/fuse") ? false : "needs Linux and /dev/fuse");

/** Mounts a file system on a directory of this host until disposal. `fuse` is an empty directory. */
export async function mount(
  type: "fuse" | "tmpfs",
  directory: string,
  options = "",
): Promise<AsyncDisposable> {
  const words = [PROGRAM, String(process.pid), type, directory, options];
  const program = spawn("python3", words, { stdio: ["pipe", "pipe", "inherit"] });
  const ended = once(program, "exit");
  const [said] = (await Promise.race([once(program.stdout, "data"), ended])) as [unknown];
  assert.equal(String(said), "mounted\n");
  return {
    async [Symbol.asyncDispose]() {
      program.stdin.end();
      assert.deepEqual(await ended, [0, null]);
    },
  };
}
