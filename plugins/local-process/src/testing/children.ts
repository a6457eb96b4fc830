import { readFile, readdir } from "node:fs/promises";

/** Child processes of a process, without zombies. */
export async function childrenOf(parent: number): Promise<number[]> {
  const pids = (await readdir("/proc")).map(Number).filter((pid) => pid > 0);
  const found: number[] = [];
  for (const pid of pids) {
    const stat = await readFile(`/proc/${pid}/stat`, "latin1").catch(() => "");
    // The program's name is in parentheses and may contain any character; state and parent follow it.
    const [state, ppid] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    if (Number(ppid) === parent && state !== "Z") found.push(pid);
  }
  return found;
}
