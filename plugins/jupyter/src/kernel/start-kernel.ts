import { randomBytes, randomUUID } from "node:crypto";
import { posix } from "node:path";
import { Readable } from "node:stream";
import { abortAfter, SandboxError, systemClock } from "@coppice/core";
import {
  adoptKernelProcess,
  type KernelCommand,
  type KernelProcess,
  startKernelProcess,
} from "../programs/kernel-process.js";
import { type InstalledKernel, isInstalled, writeKernelLabel } from "../programs/kernel-program.js";
import { isListening, type PortLeases } from "../programs/port-leases.js";
import { REASONS } from "../reasons.js";
import type { KernelConnection } from "./kernel-notes.js";
import type { KernelAdoption, KernelStart, KernelSurroundings } from "./kernel-surroundings.js";
import { Kernel } from "./kernel.js";

/**
 * Starts a kernel and waits until it answers and its output arrives.
 * @throws SandboxError invalid_argument for a missing cwd, failed_precondition when it does not start,
 * resource_exhausted when there are no ports for it; nothing of it is left then.
 */
export function startKernel(start: KernelStart): Promise<Kernel> {
  return withinStartTime(start, async (signal) => {
    const { program } = start;
    if (isInstalled(program)) return startInstalled({ ...start, program, signal });
    const identity = newIdentity();
    const started = await startKernelProcess({ ...start, ...identity, program, signal });
    return Kernel.connect({ ...start, signal }, started, { ...identity, ports: started.ports });
  });
}

async function startInstalled(
  start: KernelStart & { readonly program: InstalledKernel },
  isSecond = false,
): Promise<Kernel> {
  const { sandbox, settings, log, signal } = start;
  const identity = newIdentity();
  const started = await startInstalledKernel({ ...start, ...identity, portLeases: settings.portLeases });
  const { ports } = started;
  try {
    return await Kernel.connect(start, started, { ...identity, ports });
  } catch (error) {
    // The ports were free before its start, and now it has ended: another process took one first.
    const wasLate =
      !isSecond && (await isListening(sandbox, Object.values(ports), signal).catch(() => false));
    if (!wasLate) throw error;
    log.warn({ err: error }, "another process took a port of a kernel; starting it again with other ports");
    return startInstalled(start, true);
  }
}

/**
 * Adopts a kernel of an earlier server with its state. Executions of that server are interrupted, because their
 * clients are gone; those of Jupyter's clients go on.
 * @throws SandboxError failed_precondition when it does not answer, or ignores the interrupt; it is killed then.
 */
export function adoptKernel(adoption: KernelAdoption): Promise<Kernel> {
  const { process, connection } = adoption;
  return withinStartTime(adoption, async (signal) => {
    const taken = adoptKernelProcess(process, connection.ports);
    // A new session: the kernel may not have noticed yet that the old connections are gone.
    const renewed = { ...connection, session: randomUUID() };
    const kernel = await Kernel.connect({ ...adoption, signal }, taken, renewed);
    await kernel.endRequestsOf(connection.session);
    return kernel;
  });
}

async function withinStartTime(
  { settings, signal }: KernelSurroundings,
  start: (signal: AbortSignal) => Promise<Kernel>,
): Promise<Kernel> {
  const { startTimeoutMs: timeoutMs } = settings;
  const text = `the kernel was not ready within ${timeoutMs} ms`;
  const timeout = new SandboxError(REASONS.kernel_start_failed, text);
  const deadline = new AbortController();
  using _limit = abortAfter(deadline, { clock: systemClock, timeoutMs, overdue: () => timeout });
  return await start(AbortSignal.any([signal, deadline.signal]));
}

function newIdentity(): Pick<KernelConnection, "id" | "key" | "session"> {
  return { id: randomUUID(), key: randomBytes(32).toString("hex"), session: randomUUID() };
}

export interface InstalledKernelCommand extends Omit<KernelCommand, "program"> {
  readonly program: InstalledKernel;
  readonly portLeases: PortLeases;
}

/**
 * Starts a kernel that is installed in the sandbox. It may not listen yet when this resolves, or may end instead. Its
 * ports are leased until it ends.
 * @throws SandboxError invalid_argument for a missing cwd, resource_exhausted when no ports are free, or the signal's
 * reason; nothing of it is left then.
 */
export async function startInstalledKernel(command: InstalledKernelCommand): Promise<KernelProcess> {
  const { id, sandbox, user, program, env, cwd, key, portLeases, signal } = command;
  const lease = await portLeases.take(sandbox, signal);
  const { ports } = lease;
  const file = `/tmp/kernel-${id}.json`;
  const giveBack = async (): Promise<void> => {
    lease[Symbol.dispose]();
    await sandbox.files.remove(file).catch(() => undefined);
  };
  const connection = {
    transport: "tcp",
    ip: "127.0.0.1",
    ...Object.fromEntries(Object.entries(ports).map(([channel, port]) => [`${channel}_port`, port])),
    key,
    signature_scheme: "hmac-sha256",
    kernel_name: program.name,
  };
  // Relative, because a backend without a root of its own shows its processes the host's.
  const seen = posix.relative(cwd, file);
  const [path = "", ...args] = program.argv.map((word) => word.replaceAll("{connection_file}", seen));
  try {
    await sandbox.files.write(file, Readable.from([Buffer.from(JSON.stringify(connection))]), {
      user: user.name,
      mode: 0o600,
    });
    const process = await sandbox.spawn({
      path,
      args,
      env: { ...env, ...program.env },
      cwd,
      user: user.name,
      input: "none",
      label: writeKernelLabel({ kernel: id }),
    });
    void process.exit.then(giveBack);
    return adoptKernelProcess(process, ports);
  } catch (error) {
    await giveBack();
    throw error;
  }
}
