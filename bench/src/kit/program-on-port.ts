import { spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";

/** A small server of the benchmarks, in a process of its own. */
export interface ProgramOnPort {
  readonly port: number;
  readonly pid: number;
  end(): Promise<void>;
}

/** Starts a compiled module of this package that prints the port it listens on. */
export async function startProgramOnPort(module: URL, args: readonly string[] = []): Promise<ProgramOnPort> {
  const child = spawn(process.execPath, [fileURLToPath(module), ...args], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const ended = once(child, "exit");
  const [printed] = (await Promise.race([once(child.stdout, "data"), ended])) as [Buffer | number | null];
  const port = Number(String(printed));
  if (!Number.isInteger(port) || port === 0) throw new Error(`${module.pathname} did not start`);
  return {
    port,
    pid: child.pid ?? 0,
    async end() {
      child.kill("SIGKILL");
      await ended;
    },
  };
}
