const PREFIX = "jupyter:";

/** Names a kernel's process for the server that finds it running. What it takes to speak to it stays on the host. */
export function writeKernelLabel(id: string): string {
  return PREFIX + JSON.stringify({ kernel: id });
}

/** The id of the kernel that a label is of; undefined when it is none of ours. */
export function readKernelLabel(label: string): string | undefined {
  if (!label.startsWith(PREFIX)) return undefined;
  try {
    const { kernel } = JSON.parse(label.slice(PREFIX.length)) as { readonly kernel?: unknown };
    return typeof kernel === "string" ? kernel : "";
  } catch {
    // Of another version: a kernel all the same, which nobody can know any more.
    return "";
  }
}
