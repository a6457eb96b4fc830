import { posix } from "node:path";
import { Readable } from "node:stream";
import { writeKernelLabel } from "../programs/kernel-label.js";
import { adoptKernelProcess, type KernelCommand, type KernelProcess } from "../programs/kernel-process.js";
import type { InstalledKernel } from "../programs/kernel-program.js";
import type { PortLeases } from "../programs/port-leases.js";

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
