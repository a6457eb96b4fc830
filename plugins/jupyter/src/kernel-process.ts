import { SandboxError, type Process, type Sandbox, type User } from "@coppice/core";
import { z } from "zod";
import { writeKernelLabel } from "./kernel-label.js";
import type { KernelProgram } from "./kernel-program.js";

export interface KernelCommand {
  /** By which a later server finds its process. */
  readonly id: string;
  readonly sandbox: Sandbox;
  readonly user: User;
  readonly program: KernelProgram;
  /** Complete environment of the kernel. */
  readonly env: Readonly<Record<string, string>>;
  /** Absolute path inside the sandbox. */
  readonly cwd: string;
  /** Signs every message. Reaches the kernel through its stdin only. */
  readonly key: string;
  readonly signal: AbortSignal;
}

/** A kernel that listens but has not been spoken to. */
export interface KernelProcess {
  readonly process: Process;
  /** Ports on the loopback address inside the sandbox. */
  readonly ports: KernelPorts;
  /** The end of what it wrote outside of any execution; it is where a crash leaves its reason. */
  readonly lastWords: () => string;
}

const Port = z.int().min(1).max(65535);
export const KernelPorts = z.object({ shell: Port, iopub: Port, stdin: Port, control: Port, hb: Port });
export type KernelPorts = z.infer<typeof KernelPorts>;

const LONGEST_PORTS_LINE = 1024;
const LAST_WORDS_BYTES = 4096;

/**
 * Starts a kernel and waits until it listens.
 * @throws SandboxError invalid_argument for a cwd that does not exist, failed_precondition with the
 * reason when it ends before it listens, or the signal's reason; then no process is left.
 */
export async function startKernelProcess(command: KernelCommand): Promise<KernelProcess> {
  const { id, sandbox, user, program, env, cwd, key, signal } = command;
  const start = Buffer.from(JSON.stringify(await program.start(key)));
  const kernel = await sandbox.spawn({
    path: program.path,
    args: program.args,
    env,
    cwd,
    user: user.name,
    input: "pipe",
    label: writeKernelLabel(id),
  });
  const output = new KernelOutput(kernel, { isStarting: true });
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const abort = (): void => reject(signal.reason);
  signal.addEventListener("abort", abort, { once: true });
  try {
    signal.throwIfAborted();
    const send = kernel.write(Buffer.concat([Buffer.from(`${start.length}\n`), start])).then(
      () => kernel.closeInput(),
      // A process that ended already says why through its exit.
      () => undefined,
    );
    const line = await Promise.race([aborted, output.firstLine, send.then(() => output.firstLine)]);
    if (line === undefined) throw await endedEarly(kernel, output);
    const ports = KernelPorts.safeParse(parseJson(line));
    if (!ports.success) throw new SandboxError("failed_precondition", "the kernel did not report its ports");
    return { process: kernel, ports: ports.data, lastWords: () => output.lastWords() };
  } catch (error) {
    await kernel.kill("SIGKILL", "group").catch(() => undefined);
    throw error;
  } finally {
    signal.removeEventListener("abort", abort);
  }
}

/** Takes over a kernel that an earlier server started. */
export function takeOverKernelProcess(process: Process, ports: KernelPorts): KernelProcess {
  const output = new KernelOutput(process, { isStarting: false });
  return { process, ports, lastWords: () => output.lastWords() };
}

async function endedEarly(kernel: Process, output: KernelOutput): Promise<SandboxError> {
  await kernel.kill("SIGKILL", "group").catch(() => undefined);
  const { code, signal } = await kernel.exit;
  const reason = output.lastWords().trim().split("\n").at(-1) ?? "";
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

/** Reads what a kernel's process writes by itself: a first line for us, then nothing that a client sees. */
class KernelOutput {
  /** undefined: the output ended before it. */
  readonly firstLine: Promise<string | undefined>;
  #lastWords = Buffer.alloc(0);

  constructor(kernel: Process, { isStarting }: { readonly isStarting: boolean }) {
    const { promise, resolve } = Promise.withResolvers<string | undefined>();
    this.firstLine = promise;
    void this.#drain(kernel, { head: isStarting ? Buffer.alloc(0) : undefined, resolve });
  }

  lastWords(): string {
    return this.#lastWords.toString("utf8");
  }

  // To the end: a full pipe would stop the kernel.
  async #drain(
    kernel: Process,
    first: { head: Buffer | undefined; readonly resolve: (line: string | undefined) => void },
  ): Promise<void> {
    let { head } = first;
    const { resolve } = first;
    for await (const { stream, data } of kernel.output) {
      if (stream === "stdout" && head !== undefined) {
        head = Buffer.concat([head, data]);
        const end = head.indexOf(0x0a);
        if (end < 0 && head.length <= LONGEST_PORTS_LINE) continue;
        resolve(head.toString("utf8", 0, Math.max(end, 0)));
        head = undefined;
      } else {
        this.#lastWords = Buffer.concat([this.#lastWords, data]).subarray(-LAST_WORDS_BYTES);
      }
    }
    resolve(undefined);
  }
}
