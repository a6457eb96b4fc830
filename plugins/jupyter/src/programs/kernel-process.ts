import { BoundedBytes, SandboxError, unlessAborted } from "@coppice/core";
import type { Process, Sandbox, User } from "@coppice/core/backend";
import { z } from "zod";
import { parseJson } from "../json/ascii-json.js";
import { REASONS } from "../reasons.js";
import { type KernelProgram, writeKernelLabel } from "./kernel-program.js";

export interface KernelCommand extends Omit<ProgramCommand, "label"> {
  /** Id of the kernel. A later server finds the kernel's process by this id. */
  readonly id: string;
}

/** A kernel that listens but has got no request yet. */
export interface KernelProcess {
  readonly process: Process;
  /** Ports on the loopback address inside the sandbox. */
  readonly ports: KernelPorts;
  /** The end of its output outside of executions, which has the reason of a crash. */
  readonly outputTail: () => string;
}

const portNumber = z.int().min(1).max(65535);
export const kernelPorts = z.object({
  shell: portNumber,
  iopub: portNumber,
  stdin: portNumber,
  control: portNumber,
  hb: portNumber,
});
export type KernelPorts = z.infer<typeof kernelPorts>;

/** Starts a kernel and waits until it listens. @throws SandboxError as `startProgram`; no process is left then. */
export async function startKernelProcess({ id, ...command }: KernelCommand): Promise<KernelProcess> {
  const started = await startProgram({ ...command, label: writeKernelLabel({ kernel: id }) });
  const { process, report, outputTail } = started;
  const ports = kernelPorts.safeParse(report);
  if (ports.success) return { process, ports: ports.data, outputTail };
  await killProgram(process);
  throw new SandboxError(REASONS.kernel_start_failed, "the kernel did not report its ports");
}

export function adoptKernelProcess(process: Process, ports: KernelPorts): KernelProcess {
  return { process, ports, outputTail: new ProgramOutput(process, { isStarting: false }).tail };
}

interface ProgramCommand {
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

/** The failure of a kernel that did not start, with what it wrote. */
export class KernelStartError extends SandboxError {
  /** The end of its output, for the log: clients get its last line, in the message. */
  readonly output: string;

  constructor(message: string, output: string) {
    super(REASONS.kernel_start_failed, message);
    this.output = output;
  }
}

/** Adds the output to a failure to start, where it has none yet; returns other errors as they are. */
export function withOutput(error: unknown, output: string): unknown {
  const lacksOutput = error instanceof SandboxError && !(error instanceof KernelStartError);
  if (!lacksOutput || error.reason !== REASONS.kernel_start_failed.reason) return error;
  return new KernelStartError(error.message, output);
}
