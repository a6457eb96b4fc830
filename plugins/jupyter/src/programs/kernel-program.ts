import { readFile } from "node:fs/promises";
import type { ZygoteAddress } from "./kernel-label.js";

/** A kernel that comes with this plugin: it reads its start data from stdin and reports its ports on stdout. */
export interface KernelProgram {
  /** Inside the sandbox: an absolute path or a name in PATH. */
  readonly path: string;
  readonly args: readonly string[];
  /** JSON for its stdin, which ends after it. The key signs every message and appears nowhere else. */
  start(key: string): Promise<Readonly<Record<string, unknown>>>;
  /** The program by which a zygote becomes the same kernel; absent for one that cannot be forked. */
  readonly forkedFrom?: (zygote: ZygoteAddress) => KernelProgram;
}

/** A kernel that is installed in the sandbox: it reads its ports from a file, and supports Jupyter's protocol alone. */
export interface InstalledKernel {
  /** Name of its directory, by which Jupyter's clients request it. */
  readonly name: string;
  readonly displayName: string;
  readonly language: string;
  /** Program and arguments, including `{connection_file}`. */
  readonly argv: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly interruptMode: "signal" | "message";
}

/** The contents of files by given names. */
export async function readTexts(
  files: readonly (readonly [name: string, file: URL | string])[],
): Promise<Readonly<Record<string, string>>> {
  const read = files.map(async ([name, file]) => [name, await readFile(file, "utf8")] as const);
  return Object.fromEntries(await Promise.all(read));
}

export function isInstalled(program: KernelProgram | InstalledKernel): program is InstalledKernel {
  return "argv" in program;
}
