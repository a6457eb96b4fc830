import { randomInt } from "node:crypto";
import { posix } from "node:path";
import { writeKernelLabel } from "./kernel-label.js";
import { takeOverKernelProcess, type KernelCommand, type KernelProcess } from "./kernel-process.js";
import type { InstalledKernel } from "./kernel-program.js";

const FIRST_PORT = 20_000;
const LAST_PORT = 29_999;

/**
 * Starts a kernel that the sandbox has. It may not listen yet when this resolves, and it may end instead.
 * @throws SandboxError invalid_argument for a cwd that does not exist.
 */
export async function startInstalledKernel(
  command: Omit<KernelCommand, "program"> & { readonly program: InstalledKernel },
): Promise<KernelProcess> {
  const { id, sandbox, user, program, env, cwd, key } = command;
  const [shell = 0, iopub = 0, stdin = 0, control = 0, hb = 0] = freshPorts(5);
  const file = `/tmp/kernel-${id}.json`;
  const connection = {
    transport: "tcp",
    ip: "127.0.0.1",
    shell_port: shell,
    iopub_port: iopub,
    stdin_port: stdin,
    control_port: control,
    hb_port: hb,
    key,
    signature_scheme: "hmac-sha256",
    kernel_name: program.name,
  };
  await sandbox.files.write(file, textOf(JSON.stringify(connection)), { user: user.name, mode: 0o600 });
  const remove = (): Promise<void> => sandbox.files.remove(file).catch(() => undefined);
  // Relative, because a backend without a root of its own shows its processes the host's.
  const seen = posix.relative(cwd, file);
  const [path = "", ...args] = program.argv.map((word) => word.replaceAll("{connection_file}", seen));
  try {
    const process = await sandbox.spawn({
      path,
      args,
      env: { ...env, ...program.env },
      cwd,
      user: user.name,
      input: "none",
      label: writeKernelLabel(id),
    });
    void process.exit.then(remove);
    return takeOverKernelProcess(process, { shell, iopub, stdin, control, hb });
  } catch (error) {
    await remove();
    throw error;
  }
}

// The kernel is told its ports. Those that the system gives to whoever asks for any are above these.
function freshPorts(count: number): readonly number[] {
  const ports = new Set<number>();
  while (ports.size < count) ports.add(randomInt(FIRST_PORT, LAST_PORT + 1));
  return [...ports];
}

async function* textOf(text: string): AsyncGenerator<Uint8Array, void, undefined> {
  yield Buffer.from(text);
}
