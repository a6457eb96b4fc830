import type { ZygoteAddress } from "./kernel-label.js";

/** A program of ours that is a kernel: it reads how to start from its stdin and tells its ports on stdout. */
export interface KernelProgram {
  /** Inside the sandbox: an absolute path or a name in PATH. */
  readonly path: string;
  readonly args: readonly string[];
  /** JSON for its stdin, which ends after it. The key signs every message and is seen nowhere else. */
  start(key: string): Promise<Readonly<Record<string, unknown>>>;
  /** The program by which a zygote becomes the same kernel; absent for one that cannot be forked. */
  readonly forkedFrom?: (zygote: ZygoteAddress) => KernelProgram;
}

/** A kernel that the sandbox has: it reads where to listen from a file, and knows Jupyter's protocol alone. */
export interface InstalledKernel {
  /** Name of its directory, by which Jupyter's clients ask for it. */
  readonly name: string;
  readonly displayName: string;
  readonly language: string;
  /** Program and arguments; one of them has `{connection_file}` in it. */
  readonly argv: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly interruptMode: "signal" | "message";
}

/** True for a kernel that is installed in the sandbox. */
export function isInstalled(program: KernelProgram | InstalledKernel): program is InstalledKernel {
  return "argv" in program;
}
