import type { InstalledKernel } from "../programs/kernel-program.js";

/** Jupyter's kernel name of `python`. */
const PYTHON = "python3";

/** The kernel name of a language; an installed kernel has its own. */
export function specNameOf(language: string): string {
  return language === "python" ? PYTHON : language;
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
      metadata: { debugger: name === PYTHON },
    },
  };
}
