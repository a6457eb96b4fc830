import type { InstalledKernel } from "../programs/kernel-program.js";

/** Jupyter's kernel names by language of `/execute`. */
const SPEC_NAMES: ReadonlyMap<string, string> = new Map([["python", "python3"]]);

/** The kernel name of a language; an installed kernel has its own. */
export function specNameOf(language: string): string {
  return SPEC_NAMES.get(language) ?? language;
}

export function ownSpecOf(language: string) {
  const displayName = language === "python" ? "Python 3 (ipykernel)" : language;
  return specOf({ name: specNameOf(language), displayName, language });
}

type Named = Pick<InstalledKernel, "name" | "displayName" | "language">;

/** Jupyter's description of a kernel. */
export function specOf({ name, displayName, language }: Named) {
  return {
    name,
    resources: {},
    spec: {
      // Never executed: the server starts kernels itself.
      argv: ["coppice", "kernel", name, "{connection_file}"],
      env: {},
      display_name: displayName,
      language,
      interrupt_mode: "message",
      // JupyterLab asks before there is a kernel, which then reports whether it finds debugpy.
      metadata: { debugger: name === SPEC_NAMES.get("python") },
    },
  };
}
