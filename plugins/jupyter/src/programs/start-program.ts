import { BoundedBytes, SandboxError, unlessAborted } from "@coppice/core";
import type { Process, Sandbox, User } from "@coppice/core/backend";
import { parseJson } from "../json/parse-json.js";
import type { KernelProgram } from "./kernel-program.js";
import { withOutput } from "./kernel-start-error.js";
import { REASONS } from "../reasons.js";

export interface ProgramCommand {
  readonly sandbox: Sandbox;
  readonly user: User;
  readonly program: KernelProgram;
  readonly env: Readonly<Record<string, string>>;
  readonly cwd: string;
  /** Secret key for the program, which gets it through stdin only. */
  readonly key: string;
  readonly label: string;
  readonly signal: AbortSignal;
}

interface StartedProgram {
  readonly process: Process;
  /** The JSON in the first line of its output; undefined for other text. */
  readonly report: unknown;
  /** The end of its later output, which has the reason of a crash. */
  readonly outputTail: () => string;
}

const MAX_REPORT = 16_384;
const LAST_WORDS_BYTES = 4096;

/**
 * Starts one of our programs in a sandbox and waits for its report on stdout.
 * @throws SandboxError invalid_argument for a missing cwd, failed_precondition with the reason when it ends before
 * that, or the signal's reason; no process is left then.
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
  try {
    const line = await unlessAborted(signal, () => {
      const send = process.write(Buffer.concat([Buffer.from(`${start.length}\n`), start])).then(
        () => process.closeInput(),
        // The exit of an ended process explains more.
        () => undefined,
      );
      return Promise.race([output.firstLine, send.then(() => output.firstLine)]);
    });
    if (line === undefined) throw await endedEarly(process, output);
    return { process, report: parseJson(line), outputTail: output.tail };
  } catch (error) {
    await killProgram(process);
    throw withOutput(error, output.tail());
  }
}

/** Kills a process and its children. @returns false when the server has detached: its `exit` may never settle then. */
export async function killProgram(process: Process): Promise<boolean> {
  try {
    await process.kill("SIGKILL", "group");
    return true;
  } catch (error) {
    return error instanceof SandboxError && error.code === "not_found";
  }
}

async function endedEarly(process: Process, output: ProgramOutput): Promise<SandboxError> {
  if (!(await killProgram(process)))
    return new SandboxError("server_stopped", "the server has left the sandbox");
  const { code, signal } = await process.exit;
  const reason = output.tail().trim().split("\n").at(-1) ?? "";
  const how = signal === undefined ? `exit code ${code}` : signal;
  const text = `the kernel ended while it started (${how})${reason && `: ${reason}`}`;
  return new SandboxError(REASONS.kernel_start_failed, text);
}

/** Reads the output of one of our programs: a report at its start, then text that clients do not see. */
export class ProgramOutput {
  readonly #first = Promise.withResolvers<string | undefined>();
  /** undefined when the output ended before it. */
  readonly firstLine: Promise<string | undefined> = this.#first.promise;
  readonly #tail = new BoundedBytes(LAST_WORDS_BYTES, "last");

  constructor(process: Process, { isStarting }: { readonly isStarting: boolean }) {
    void this.#drain(process, isStarting ? Buffer.alloc(0) : undefined);
  }

  readonly tail = (): string => this.#tail.text;

  // To the end: a full pipe would block the program.
  async #drain(process: Process, start: Buffer | undefined): Promise<void> {
    let head = start;
    for await (const { stream, data } of process.output) {
      if (stream === "stdout" && head !== undefined) {
        head = Buffer.concat([head, data]);
        const end = head.indexOf(0x0a);
        if (end < 0 && head.length <= MAX_REPORT) continue;
        this.#first.resolve(head.toString("utf8", 0, Math.max(end, 0)));
        head = undefined;
      } else {
        this.#tail.push(data);
      }
    }
    this.#first.resolve(undefined);
  }
}
