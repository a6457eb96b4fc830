import { readFile } from "node:fs/promises";
import { z } from "zod";
import { parseJson } from "../json/ascii-json.js";

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

/** Address and secret of a zygote inside its sandbox. */
export type ZygoteAddress = z.infer<typeof zygote>;

/** Label of a process, for a later server. A kernel's connection data stay on the host. */
type KernelLabel = { readonly kernel: string } | { readonly zygote: ZygoteAddress };

const PREFIX = "jupyter:";

const zygote = z.object({ name: z.string(), secret: z.string() });
const label = z.union([z.object({ kernel: z.string() }), z.object({ zygote })]);

export function writeKernelLabel(label: KernelLabel): string {
  return PREFIX + JSON.stringify(label);
}

/** Parses a label; undefined for other plugins' labels. */
export function readKernelLabel(text: string): KernelLabel | undefined {
  if (!text.startsWith(PREFIX)) return undefined;
  // The label is of another version of the server, and its kernel cannot be used any more.
  return label.safeParse(parseJson(text.slice(PREFIX.length))).data ?? { kernel: "" };
}

// Variables that the interpreter, the linker and libraries read only at their start or import.
const READ_AT_START =
  /^(PYTHON|LD_|LC_|LANG|TZ$|MALLOC_|MPL|OMP_|OPENBLAS_|GOTO_|MKL_|BLIS_|NUMEXPR_|NUMBA_)/;

/** True when a running Python can switch from one environment to another as if started with it. */
export function canGoOnWith(
  before: Readonly<Record<string, string>>,
  after: Readonly<Record<string, string>>,
): boolean {
  return [...Object.keys(before), ...Object.keys(after)].every(
    (name) => !READ_AT_START.test(name) || before[name] === after[name],
  );
}
