import { execFile } from "node:child_process";
import { readdir, readFile } from "node:fs/promises";
import { promisify } from "node:util";

const run = promisify(execFile);

/** A process of this machine that runs, and is no zombie. */
export interface RunningProcess {
  readonly pid: number;
  /** Its arguments, joined with blanks. */
  readonly commandLine: string;
}

/** Every running process of this machine whose arguments contain a text. */
export async function runningProcesses(text: string): Promise<readonly RunningProcess[]> {
  const all = process.platform === "linux" ? await fromProc() : await fromPs();
  return all.filter(({ commandLine }) => commandLine.includes(text));
}

/** True for the pid of a running process. False for a zombie, which another process reaps. */
export async function isRunning(pid: number): Promise<boolean> {
  const all = process.platform === "linux" ? await fromProc([String(pid)]) : await fromPs();
  return all.some((found) => found.pid === pid);
}

async function fromProc(names?: readonly string[]): Promise<readonly RunningProcess[]> {
  const pids = (names ?? (await readdir("/proc"))).filter((name) => /^\d+$/.test(name));
  const found = await Promise.all(
    pids.map(async (pid) => {
      try {
        const stat = await readFile(`/proc/${pid}/stat`, "latin1");
        const state = stat.slice(stat.lastIndexOf(")") + 2).charAt(0);
        if (state === "Z" || state === "X") return undefined;
        const commandLine = (await readFile(`/proc/${pid}/cmdline`, "utf8")).replaceAll("\0", " ").trim();
        return { pid: Number(pid), commandLine };
      } catch {
        // It ended before its files were read.
        return undefined;
      }
    }),
  );
  return found.filter((one) => one !== undefined);
}

async function fromPs(): Promise<readonly RunningProcess[]> {
  const { stdout } = await run("ps", ["-axww", "-o", "pid=", "-o", "stat=", "-o", "command="], {
    maxBuffer: 2 ** 26,
  });
  return stdout.split("\n").flatMap((line) => {
    const [, pid, state = "", commandLine = ""] = /^\s*(\d+)\s+(\S+)\s+(.*)$/.exec(line) ?? [];
    return pid === undefined || state.startsWith("Z") ? [] : [{ pid: Number(pid), commandLine }];
  });
}
