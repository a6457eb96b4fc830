import type { InstalledKernel } from "../programs/kernel-program.js";

/** How the languages of `/execute` are called in Jupyter. */
const SPEC_NAMES: ReadonlyMap<string, string> = new Map([["python", "python3"]]);

/** The name of the kernel for a language; an installed one goes by its own. */
export function specNameOf(language: string): string {
  return SPEC_NAMES.get(language) ?? language;
}

/** Jupyter's description of a kernel of ours, by its language. */
export function kernelSpecOf(language: string): KernelSpecModel {
  const displayName = language === "python" ? "Python 3 (ipykernel)" : language;
  return specModel({ name: specNameOf(language), displayName, language });
}

/** Jupyter's description of a kernel that the sandbox has. */
export function installedSpecOf(kernel: InstalledKernel): KernelSpecModel {
  return specModel(kernel);
}

/** As Jupyter's clients get it. */
export interface KernelSpecModel {
  readonly name: string;
  readonly resources: object;
  readonly spec: object;
}

function specModel({
  name,
  displayName,
  language,
}: Pick<InstalledKernel, "name" | "displayName" | "language">): KernelSpecModel {
  return {
    name,
    resources: {},
    spec: {
      // Never run from here: the server starts kernels itself.
      argv: ["coppice", "kernel", name, "{connection_file}"],
      env: {},
      display_name: displayName,
      language,
      interrupt_mode: "message",
      // JupyterLab asks this before there is a kernel; that says itself whether it finds debugpy.
      metadata: { debugger: name === SPEC_NAMES.get("python") },
    },
  };
}
