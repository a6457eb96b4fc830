import { setTimeout as delay } from "node:timers/promises";
import { unlessAborted } from "@coppice/core";
import {
  type Command,
  type Exit,
  type Output,
  type Process,
  type Sandbox,
  SandboxError,
} from "@coppice/core/backend";

export interface GuestRun {
  /** Ends the command. */
  readonly signal: AbortSignal;
  /** Output that it has not taken yet slows the command. */
  readonly onOutput?: (output: Output) => void | Promise<void>;
  /** Standard input; empty when absent. A piece must not change until `MOST_WRITES` later ones were asked for. */
  readonly input?: AsyncIterable<Uint8Array>;
  /** Asks the command to end, and ends it after a while. */
  readonly stop?: AbortSignal;
}

/** Result of a script of ours. */
export interface ScriptResult {
  readonly exit: Exit;
  readonly stdout: string;
  /** The end of what it wrote to stderr, trimmed. */
  readonly stderr: string;
}

/** A process that a command leaves behind may hold its output open for ever. */
const LINGERING_MS = 1_000;
/** Time that a command gets to end when it is asked to. */
const STOP_MS = 10_000;
/** Time in which a backend knows why a sandbox has ended. */
const LOSS_MS = 2_000;
/** Pieces of input that are on their way at one time. */
export const MOST_WRITES = 8;
const STDOUT_BYTES = 1024 * 1024;
const STDERR_BYTES = 512;
const PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

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
  try {
    const exit = await unlessAborted(run.signal, () => attend(started, run));
    if (exit.signal === undefined || exit.isAssumed !== true) return exit;
    const loss = await Promise.race([sandbox.lost, delay(LOSS_MS, undefined, { ref: false })]);
    throw new SandboxError(
      "sandbox_lost",
      `the sandbox of the build was lost: ${loss ?? "for no known reason"}`,
    );
  } catch (error) {
    await started.kill("SIGKILL", "group").catch(() => undefined);
    throw error;
  }
}

async function attend(started: Process, { input, onOutput, signal, stop }: GuestRun): Promise<Exit> {
  const end = (): void => void stopProcess(started);
  if (stop?.aborted === true) end();
  stop?.addEventListener("abort", end, { once: true });
  const output = started.output[Symbol.asyncIterator]();
  const read = async (): Promise<void> => {
    for (let next = await output.next(); next.done !== true; next = await output.next()) {
      if (!signal.aborted) await onOutput?.(next.value);
    }
  };
  const reading = read();
  // What cannot take the output ends the command.
  const [exit] = await Promise.race([
    Promise.all([started.exit, input && feed(started, input)]),
    reading.then(() => new Promise<never>(() => undefined)),
  ]);
  await Promise.race([reading, delay(LINGERING_MS, undefined, { ref: false })]);
  stop?.removeEventListener("abort", end);
  // Nobody waits for the rest.
  void output.return?.();
  return exit;
}

async function stopProcess(started: Process): Promise<void> {
  const kill = async (signal: "SIGTERM" | "SIGKILL"): Promise<void> =>
    started.kill(signal, "group").catch(() => undefined);
  await kill("SIGTERM");
  await Promise.race([started.exit, delay(STOP_MS, undefined, { ref: false })]);
  await kill("SIGKILL");
}

/** A command that exits before it has read all has its reason in its exit. */
async function feed(started: Process, input: AsyncIterable<Uint8Array>): Promise<void> {
  const pending: Promise<boolean>[] = [];
  for await (const chunk of input) {
    const isTaken = started.write(chunk).then(
      () => true,
      () => false,
    );
    // Several at a time: after each one, the sandbox would wait for the next.
    pending.push(isTaken);
    if (pending.length >= MOST_WRITES && !(await pending.shift())) return;
  }
  await Promise.all(pending);
  await started.closeInput();
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
  const kept = { stdout: Buffer.alloc(0), stderr: Buffer.alloc(0) };
  const onOutput = ({ stream, data }: Output): void => {
    if (stream === "stderr") kept.stderr = Buffer.concat([kept.stderr, data]).subarray(-STDERR_BYTES);
    else kept.stdout = Buffer.concat([kept.stdout, data]).subarray(0, STDOUT_BYTES);
  };
  const options = shell === "bash" ? ["--noprofile", "--norc"] : [];
  const exit = await runInGuest(
    sandbox,
    {
      path: `/bin/${shell}`,
      args: [...options, "-c", script, shell, ...args],
      env: { PATH, HOME: "/root", USER: "root" },
      cwd: "/",
      user: "root",
    },
    { ...run, onOutput },
  );
  return { exit, stdout: kept.stdout.toString(), stderr: kept.stderr.toString().trim() };
}

/** An end in the words of Go, whose clients know them: `exit status 1`, `signal: killed`. */
export function exitText(exit: Exit): string {
  if (exit.signal === undefined) return `exit status ${exit.code}`;
  const words: Readonly<Record<string, string>> = { SIGKILL: "killed", SIGTERM: "terminated" };
  return `signal: ${words[exit.signal] ?? exit.signal.slice(3).toLowerCase()}`;
}

/** The end of a script that failed, with what it wrote about it. */
export function failureText({ exit, stderr }: ScriptResult): string {
  return stderr === "" ? exitText(exit) : `${exitText(exit)}: ${stderr}`;
}
