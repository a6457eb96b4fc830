import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync } from "node:fs";
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
export async function runIsolated<T>(module: string, question: unknown): Promise<T> {
  // Bash reaps the orphans of the processes that faults kill: it is their init.
  const script = 'trap "" INT; "$0" "$1"; exit $?';
  const namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
  const child = spawn(
    "unshare",
    [...namespaces, "bash", "-c", script, process.execPath, fileURLToPath(module)],
    { stdio: ["ignore", "inherit", "inherit", "ipc"] },
  );
  const ended = once(child, "exit");
  const answered = once(child, "message");
  child.send({ question });
  const [answer] = (await Promise.race([answered, ended.then(() => [])])) as readonly unknown[];
  if (child.connected) child.disconnect();
  const [code] = (await ended) as readonly unknown[];
  if (answer === undefined) throw new Error(`the isolated process ended without an answer (${String(code)})`);
  return answer as T;
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
        process.stderr.write(`${error instanceof Error ? error.stack : String(error)}\n`, () =>
          process.exit(1),
        );
      },
    );
  });
}
