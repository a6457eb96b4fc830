import { SandboxError, type Process, type Sandbox, type User } from "@coppice/core";
import type { KernelProgram } from "./kernel-program.js";

export interface ProgramCommand {
  readonly sandbox: Sandbox;
  readonly user: User;
  readonly program: KernelProgram;
  /** Complete environment. */
  readonly env: Readonly<Record<string, string>>;
  /** Absolute path inside the sandbox. */
  readonly cwd: string;
  /** Reaches the program through its stdin only. */
  readonly key: string;
  /** For a later server. */
  readonly label: string;
  readonly signal: AbortSignal;
}

export interface StartedProgram {
  readonly process: Process;
  /** The JSON of the first line that it wrote; undefined where that is none. */
  readonly report: unknown;
  /** The end of what it wrote since; it is where a crash leaves its reason. */
  readonly outputTail: () => string;
}

const LONGEST_REPORT = 16_384;
const LAST_WORDS_BYTES = 4096;

/**
 * Starts one of our programs in a sandbox and waits until it has said on stdout what it has to say.
 * @throws SandboxError invalid_argument for a cwd that does not exist, failed_precondition with the
 * reason when it ends before that, or the signal's reason; then no process is left.
 */
export async function startProgram(command: ProgramCommand): Promise<StartedProgram> {
  const { sandbox, user, program, env, cwd, key, label, signal } = command;
  const start = Buffer.from(JSON.stringify(await program.start(key)));
  const process = await sandbox.spawn({
    path: program.path,
    args: program.args,
    env,
    cwd,
    user: user.name,
    input: "pipe",
    label,
  });
  const output = new ProgramOutput(process, { isStarting: true });
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const abort = (): void => reject(signal.reason);
  signal.addEventListener("abort", abort, { once: true });
  try {
    signal.throwIfAborted();
    const send = process.write(Buffer.concat([Buffer.from(`${start.length}\n`), start])).then(
      () => process.closeInput(),
      // A process that ended already says why through its exit.
      () => undefined,
    );
    const line = await Promise.race([aborted, output.firstLine, send.then(() => output.firstLine)]);
    if (line === undefined) throw await endedEarly(process, output);
    return { process, report: parseJson(line), outputTail: () => output.outputTail() };
  } catch (error) {
    await killProgram(process);
    throw error;
  } finally {
    signal.removeEventListener("abort", abort);
  }
}

/**
 * Kills a process and what it started.
 * @returns false when it is not known whether it has ended: the server has let go of the sandbox, and nothing more is
 * heard of it. Its `exit` may never settle.
 */
export async function killProgram(process: Process): Promise<boolean> {
  try {
    await process.kill("SIGKILL", "group");
    return true;
  } catch (error) {
    return error instanceof SandboxError && error.code === "not_found";
  }
}

async function endedEarly(process: Process, output: ProgramOutput): Promise<SandboxError> {
  if (!(await killProgram(process))) return new SandboxError("aborted", "the server has left the sandbox");
  const { code, signal } = await process.exit;
  const reason = output.outputTail().trim().split("\n").at(-1) ?? "";
  const how = signal === undefined ? `exit code ${code}` : signal;
  return new SandboxError(
    "failed_precondition",
    `the kernel ended while it started (${how})${reason && `: ${reason}`}`,
  );
}

function parseJson(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}

/** Reads what a program of ours writes by itself: a report when it starts, then nothing that a client sees. */
export class ProgramOutput {
  /** undefined: the output ended before it. */
  readonly firstLine: Promise<string | undefined>;
  #outputTail = Buffer.alloc(0);

  constructor(process: Process, { isStarting }: { readonly isStarting: boolean }) {
    const { promise, resolve } = Promise.withResolvers<string | undefined>();
    this.firstLine = promise;
    void this.#drain(process, { head: isStarting ? Buffer.alloc(0) : undefined, resolve });
  }

  outputTail(): string {
    return this.#outputTail.toString("utf8");
  }

  // To the end: a full pipe would stop the program.
  async #drain(
    process: Process,
    first: { head: Buffer | undefined; readonly resolve: (line: string | undefined) => void },
  ): Promise<void> {
    let { head } = first;
    const { resolve } = first;
    for await (const { stream, data } of process.output) {
      if (stream === "stdout" && head !== undefined) {
        head = Buffer.concat([head, data]);
        const end = head.indexOf(0x0a);
        if (end < 0 && head.length <= LONGEST_REPORT) continue;
        resolve(head.toString("utf8", 0, Math.max(end, 0)));
        head = undefined;
      } else {
        this.#outputTail = Buffer.concat([this.#outputTail, data]).subarray(-LAST_WORDS_BYTES);
      }
    }
    resolve(undefined);
  }
}
