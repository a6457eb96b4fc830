import { SandboxError } from "@coppice/core";

/** How the languages of `/execute` are called in Jupyter. */
const SPEC_NAMES: ReadonlyMap<string, string> = new Map([["python", "python3"]]);

/** The name of the kernel for a language. */
export function specNameOf(language: string): string {
  return SPEC_NAMES.get(language) ?? language;
}

/** Jupyter's description of the kernel for a language. */
export function kernelSpecOf(language: string): object {
  const name = specNameOf(language);
  return {
    name,
    resources: {},
    spec: {
      // Never run from here: the server starts kernels itself.
      argv: ["coppice", "kernel", name, "{connection_file}"],
      env: {},
      display_name: language === "python" ? "Python 3 (ipykernel)" : language,
      language,
      interrupt_mode: "message",
      metadata: { debugger: false },
    },
  };
}

/** @throws SandboxError not_found for a kernel that is not here. */
export function kernelSpecNamed(name: string, languages: readonly string[]): object {
  const language = languages.find((known) => specNameOf(known) === name);
  if (language === undefined)
    throw new SandboxError("not_found", `Kernel spec ${name.slice(0, 100)} not found`);
  return kernelSpecOf(language);
}
