import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { readlinkSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { hostname } from "node:os";
import { promisify } from "node:util";

const run = promisify(execFile);

/**
 * Names the server process that a directory belongs to, as `<host>.<pid>.<start>`: short enough for a
 * directory's name, exact enough that another process of the same pid is not taken for it.
 */
export type Owner = string;

/** This process. */
export async function currentOwner(): Promise<Owner> {
  return `${thisHost()}.${process.pid}.${await startOf(process.pid)}`;
}

/**
 * Whether an owner was a process of this host that is gone. An owner on another host (a directory that
 * machines or containers share) is never gone: it cannot be seen from here.
 */
export async function isGone(owner: Owner): Promise<boolean> {
  const [host, pid, start] = owner.split(".");
  return host === thisHost() && start !== (await startOf(Number(pid)));
}

/** Where a pid means what it means here: containers of one host may share a directory, and have pids of their own. */
function thisHost(): string {
  const processes = process.platform === "linux" ? readlinkSync("/proc/self/ns/pid") : "";
  return digest(hostname() + processes).slice(0, 4);
}

/** When a process started, as a digest; undefined when there is none. */
async function startOf(pid: number): Promise<string | undefined> {
  try {
    if (process.platform !== "linux") {
      return digest((await run("ps", ["-o", "lstart=", "-p", String(pid)])).stdout);
    }
    const stat = await readFile(`/proc/${pid}/stat`, "latin1");
    // The program's name is in parentheses and may hold anything; the 20th field after it is the start.
    const ticks = stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19];
    return digest(`${await readFile("/proc/sys/kernel/random/boot_id", "latin1")}${ticks}`);
  } catch {
    return undefined;
  }
}

function digest(text: string): string {
  return createHash("sha256").update(text.trim()).digest("hex").slice(0, 8);
}
