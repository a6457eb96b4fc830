import { SandboxError, type Logger, type Sandbox } from "@coppice/core";
import { installedKernels } from "./installed-kernels.js";
import type { InstalledKernel, KernelProgram } from "./kernel-program.js";

export const DEFAULT_LANGUAGE = "python";

const ALIASES: ReadonlyMap<string, string> = new Map([
  ["", DEFAULT_LANGUAGE],
  ["python3", "python"],
  ["js", "javascript"],
  ["ts", "typescript"],
]);

/** Normalizes a client's name of a language: `" JS "` is `javascript`. */
export function languageNamed(asked: string | undefined): string {
  const name = (asked ?? "").trim().toLowerCase();
  return ALIASES.get(name) ?? name;
}

export class Languages {
  readonly #own: ReadonlyMap<string, KernelProgram>;
  readonly #log: Logger;

  /** @param own the kernels of this plugin by language. */
  constructor(own: ReadonlyMap<string, KernelProgram>, log: Logger) {
    this.#own = own;
    this.#log = log;
  }

  /** The languages of every sandbox. */
  get own(): readonly string[] {
    return [...this.#own.keys()];
  }

  /** The kernels installed in a sandbox, without those that ours replace. */
  async installed(sandbox: Sandbox): Promise<readonly InstalledKernel[]> {
    const installed = await installedKernels(sandbox, this.#log);
    return installed.filter(({ name }) => !this.#own.has(languageNamed(name)));
  }

  /** By the name of a language, or of an installed kernel. @throws UnknownLanguageError */
  async programFor(language: string, sandbox: Sandbox): Promise<KernelProgram | InstalledKernel> {
    const own = this.#own.get(language);
    if (own !== undefined) return own;
    const installed = await this.installed(sandbox);
    const program =
      installed.find(({ name }) => name.toLowerCase() === language) ??
      installed.find((kernel) => kernel.language.toLowerCase() === language);
    if (program !== undefined) return program;
    throw new UnknownLanguageError(language, [...this.own, ...installed.map(({ name }) => name)]);
  }
}

/** A language without a kernel. The message is JSON, as that of E2B's server. */
export class UnknownLanguageError extends SandboxError {
  constructor(language: string, available: readonly string[]) {
    const shown = language.slice(0, 100);
    const message = `The '${shown}' kernel is not available. Available languages: ${available.join(", ")}.`;
    super(
      "template_has_no_kernel",
      `{"message": ${JSON.stringify(message)}, "short_message": ${JSON.stringify(`${shown} not found`)}}`,
    );
  }
}
