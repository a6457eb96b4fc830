import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync } from "node:fs";
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";

/** Where everything is that the programs of an isolated process write; gone with it. */
const SCRATCH = "/run/scratch";

export function reasonWithoutIsolation(): string | false {
  if (process.platform !== "linux") return "it needs Linux";
  return process.getuid?.() !== 0 && "it needs root";
}

/**
 * Runs a module in namespaces of its own: processes, mounts, networks. The kernel ends and removes all that is in them
 * together with the module's process, which ends with this one, however that ends. So nothing is ever left on the host.
 * @param module URL of a module that calls `answerIsolated`.
 * @returns what it answered. @throws Error when it ended without an answer.
 */
export async function runIsolated(module: string, question: unknown, signal?: AbortSignal): Promise<unknown> {
  // Bash reaps the orphans of the processes that faults kill: it is their init.
  const script = 'trap "" INT; "$0" "$1"; exit $?';
  const namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
  const child = spawn(
    "unshare",
    [...namespaces, "bash", "-c", script, process.execPath, fileURLToPath(module)],
    { stdio: ["ignore", "inherit", "inherit", "ipc"], signal, killSignal: "SIGKILL" },
  );
  const ended = once(child, "exit").then(([code]: unknown[]) => {
    throw new Error(`the isolated process ended without an answer (${String(code)})`);
  });
  ended.catch(() => undefined);
  const answered = once(child, "message").then(([answer]: unknown[]) => answer);
  child.send({ question });
  try {
    return await Promise.race([answered, ended]);
  } finally {
    if (child.connected) child.disconnect();
    await ended.catch(() => undefined);
  }
}

/** Makes this process, which `runIsolated` started, answer its question, and end. */
export function answerIsolated(answer: (question: unknown) => Promise<unknown>): void {
  execFileSync("mount", ["-t", "tmpfs", "tmpfs", "/run"]);
  mkdirSync(SCRATCH);
  process.env["TMPDIR"] = SCRATCH;
  execFileSync("ip", ["link", "set", "lo", "up"]);
  // The channel closes when the other process ends in any way.
  process.once("disconnect", () => process.exit());
  process.once("message", (message: { readonly question: unknown }) => {
    void answer(message.question).then(
      (told) => process.send?.(told),
      (error: unknown) => {
        process.stderr.write(`${error instanceof Error ? error.stack : String(error)}\n`, () => process.exit(1));
      },
    );
  });
}
