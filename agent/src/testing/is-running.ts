import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";

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
