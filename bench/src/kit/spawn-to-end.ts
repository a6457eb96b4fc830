import { spawn } from "node:child_process";
import { once } from "node:events";

/** Runs a program of this machine, its output thrown away. @throws Error unless it ends with 0. */
export async function spawnToEnd(path: string, args: readonly string[] = []): Promise<void> {
  const child = spawn(path, [...args], { stdio: ["ignore", "pipe", "pipe"] });
  child.stdout.resume();
  child.stderr.resume();
  const [code, signal] = (await once(child, "close")) as [number | null, string | null];
  if (code !== 0) throw new Error(`${path} ended with ${code ?? signal}`);
}
