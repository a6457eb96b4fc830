import { setTimeout as delay } from "node:timers/promises";
import { BoundedBytes } from "@coppice/core";
import {
  type Command,
  type Exit,
  exitText,
  type Output,
  runToEnd,
  type RunToEnd,
  type Sandbox,
  SandboxError,
  DEFAULT_PATH,
} from "@coppice/core/backend";

/** The signal ends the command at once. */
export type GuestRun = RunToEnd & { readonly signal: AbortSignal };

/** Result of a script of ours. */
export interface ScriptResult {
  readonly exit: Exit;
  readonly stdout: string;
  /** The end of what it wrote to stderr, trimmed. */
  readonly stderr: string;
}

/** Time in which a backend knows why a sandbox has ended. */
const LOSS_MS = 2_000;
const STDOUT_BYTES = 1024 * 1024;
const STDERR_BYTES = 512;

/**
 * Runs a command in a sandbox until it exits.
 * @throws SandboxError as `Sandbox.spawn`, and when the sandbox is lost; what `input` throws, the signal's reason
 */
export async function runInGuest(
  sandbox: Sandbox,
  command: Omit<Command, "input">,
  run: GuestRun,
): Promise<Exit> {
  run.signal.throwIfAborted();
  const started = await sandbox.spawn({ ...command, input: run.input === undefined ? "none" : "pipe" });
  const exit = await runToEnd(started, run);
  if (exit.signal === undefined || exit.isAssumed !== true) return exit;
  const loss = await Promise.race([sandbox.lost, delay(LOSS_MS, undefined, { ref: false })]);
  throw new SandboxError(
    "sandbox_lost",
    `the sandbox of the build was lost: ${loss ?? "for no known reason"}`,
  );
}

/**
 * Runs a script of ours as root, in a clean environment.
 * @param args its positional parameters: no text of a client is ever a part of the script.
 * @param shell `sh` for one that has to run where there is no bash.
 */
export async function runScript(
  sandbox: Sandbox,
  script: string,
  {
    args,
    shell = "bash",
    ...run
  }: Omit<GuestRun, "onOutput"> & { readonly args: readonly string[]; readonly shell?: "bash" | "sh" },
): Promise<ScriptResult> {
  const kept = { stdout: new BoundedBytes(STDOUT_BYTES), stderr: new BoundedBytes(STDERR_BYTES, "last") };
  const onOutput = ({ stream, data }: Output): void =>
    kept[stream === "stderr" ? "stderr" : "stdout"].push(data);
  const options = shell === "bash" ? ["--noprofile", "--norc"] : [];
  const exit = await runInGuest(
    sandbox,
    {
      path: `/bin/${shell}`,
      args: [...options, "-c", script, shell, ...args],
      env: { PATH: DEFAULT_PATH, HOME: "/root", USER: "root" },
      cwd: "/",
      user: "root",
    },
    { ...run, onOutput },
  );
  return { exit, stdout: kept.stdout.text, stderr: kept.stderr.text.trim() };
}

/** The end of a script that failed, with what it wrote about it. */
export function failureText({ exit, stderr }: ScriptResult): string {
  return stderr === "" ? exitText(exit) : `${exitText(exit)}: ${stderr}`;
}
