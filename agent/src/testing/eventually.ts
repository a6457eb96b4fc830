import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

/** Waits until a condition is true. @throws AssertionError after twenty seconds. */
export async function eventually(what: string, isTrue: () => boolean | Promise<boolean>): Promise<void> {
  for (let attempt = 0; attempt < 2_000; attempt++) {
    if (await isTrue()) return;
    await sleep(10);
  }
  assert.fail(`not true after twenty seconds: ${what}`);
}

/** True while a process runs; false for a zombie. */
export function isRunning(pid: number): boolean {
  try {
    if (process.platform !== "linux") {
      return !execFileSync("ps", ["-o", "stat=", "-p", String(pid)], { encoding: "utf8" }).startsWith("Z");
    }
    return !/^\d+ \(.*\) Z/s.test(readFileSync(`/proc/${pid}/stat`, "utf8"));
  } catch {
    return false;
  }
}
