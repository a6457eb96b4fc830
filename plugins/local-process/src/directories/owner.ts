import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { readlinkSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { hostname } from "node:os";
import { promisify } from "node:util";

const run = promisify(execFile);

/**
 * Server process that owns a directory, as `<host>.<pid>.<start>`: short enough for a directory's name, and different
 * for a later process with the same pid.
 */
export type Owner = string;

export async function currentOwner(): Promise<Owner> {
  return `${thisHost()}.${process.pid}.${await startOf(process.pid)}`;
}

/**
 * True for a process of this host that has ended. An owner on another host, with which the directory may be shared,
 * cannot be checked and is never gone.
 */
export async function isGone(owner: Owner): Promise<boolean> {
  const [host, pid, start] = owner.split(".");
  return host === thisHost() && start !== (await startOf(Number(pid)));
}

/** Identifies the scope of pids: containers of one host may share a directory but have separate pids. */
function thisHost(): string {
  const processes = process.platform === "linux" ? readlinkSync("/proc/self/ns/pid") : "";
  return digest(hostname() + processes).slice(0, 4);
}

/** Start time of a process as a digest; undefined when there is none. */
async function startOf(pid: number): Promise<string | undefined> {
  try {
    if (process.platform !== "linux") {
      return digest((await run("ps", ["-o", "lstart=", "-p", String(pid)])).stdout);
    }
    const stat = await readFile(`/proc/${pid}/stat`, "latin1");
    // The program's name is in parentheses and may contain any character; the 20th field after it is the start.
    const ticks = stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19];
    return digest(`${await readFile("/proc/sys/kernel/random/boot_id", "latin1")}${ticks}`);
  } catch {
    return undefined;
  }
}

function digest(text: string): string {
  return createHash("sha256").update(text.trim()).digest("hex").slice(0, 8);
}
