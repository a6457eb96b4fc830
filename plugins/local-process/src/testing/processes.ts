import { execFile } from "node:child_process";
import { promisify } from "node:util";

/** Child processes of a process, without zombies. */
export async function childrenOf(parent: number): Promise<number[]> {
  return (await all()).filter(({ ppid }) => ppid === parent).map(({ pid }) => pid);
}

/** False for a zombie, which a killed process may be until its new parent reaps it. */
export async function isRunning(pid: number): Promise<boolean> {
  return (await all()).some((found) => found.pid === pid);
}

async function all(): Promise<readonly { readonly pid: number; readonly ppid: number }[]> {
  const { stdout } = await promisify(execFile)("ps", ["-ax", "-o", "pid=", "-o", "ppid=", "-o", "stat="]);
  return stdout.split("\n").flatMap((line) => {
    const [, pid, ppid, state = "Z"] = /^\s*(\d+)\s+(\d+)\s+(\S+)/.exec(line) ?? [];
    return state.startsWith("Z") ? [] : [{ pid: Number(pid), ppid: Number(ppid) }];
  });
}
