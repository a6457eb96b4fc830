import { execFileSync } from "node:child_process";
import { readdirSync } from "node:fs";

/** Number of open descriptors of a process. */
export function openDescriptors(pid: number): number {
  if (process.platform === "linux") return readdirSync(`/proc/${pid}/fd`).length;
  // FreeBSD: procstat(1) prints a line for each, and for other references such as the working directory.
  const lines = execFileSync("procstat", ["-h", "-f", String(pid)], { encoding: "utf8" }).split("\n");
  return lines.filter((line) => /^\s*\d+ +\S+ +\d+ /.test(line)).length;
}
