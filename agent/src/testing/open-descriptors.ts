import { execFileSync } from "node:child_process";
import { readdirSync } from "node:fs";

/** How many descriptors a process has open. */
export function openDescriptors(pid: number): number {
  if (process.platform === "linux") return readdirSync(`/proc/${pid}/fd`).length;
  // FreeBSD: procstat(1) has a line for each, and for what else keeps a file, such as the working directory.
  const lines = execFileSync("procstat", ["-h", "-f", String(pid)], { encoding: "utf8" }).split("\n");
  return lines.filter((line) => /^\s*\d+ +\S+ +\d+ /.test(line)).length;
}
