import { SandboxError } from "@coppice/core";
import type { KernelProgram } from "./kernel-program.js";

/** The language of code that names none. */
export const DEFAULT_LANGUAGE = "python";

const ALIASES: ReadonlyMap<string, string> = new Map([
  ["", DEFAULT_LANGUAGE],
  ["python3", "python"],
  ["js", "javascript"],
  ["ts", "typescript"],
]);

/** The name that a context has for what a client asked for: `" JS "` is `javascript`. */
export function languageNamed(asked: string | undefined): string {
  const name = (asked ?? "").trim().toLowerCase();
  return ALIASES.get(name) ?? name;
}

/** What can run code. */
export class Languages {
  readonly #own: ReadonlyMap<string, KernelProgram>;

  /** @param own the kernels that come with the server, by the name of their language. */
  constructor(own: ReadonlyMap<string, KernelProgram>) {
    this.#own = own;
  }

  /** The names of those that are here. */
  get available(): readonly string[] {
    return [...this.#own.keys()];
  }

  /** @throws UnknownLanguageError for one that is not here. */
  async programFor(language: string): Promise<KernelProgram> {
    const program = this.#own.get(language);
    if (program === undefined) throw new UnknownLanguageError(language, [...this.#own.keys()]);
    return program;
  }
}

/** There is no kernel for a language. The message is JSON, as that of E2B's server. */
export class UnknownLanguageError extends SandboxError {
  constructor(language: string, available: readonly string[]) {
    const shown = language.slice(0, 100);
    const message = `The '${shown}' kernel is not available. Available languages: ${available.join(", ")}.`;
    super(
      "unimplemented",
      `{"message": ${JSON.stringify(message)}, "short_message": ${JSON.stringify(`${shown} not found`)}}`,
    );
  }
}
