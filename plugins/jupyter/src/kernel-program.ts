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
