import { z } from "zod";

/** Where a zygote listens inside its sandbox, and what whoever asks it has to know. */
export type ZygoteAddress = z.infer<typeof zygote>;

/** Label of a process of this plugin, for the server that finds it running. */
export type KernelLabel = { readonly kernel: string } | { readonly zygote: ZygoteAddress };

const PREFIX = "jupyter:";

const zygote = z.object({ name: z.string(), secret: z.string() });
const label = z.union([z.object({ kernel: z.string() }), z.object({ zygote })]);

/** Names a kernel's process. What it takes to speak to it stays on the host. */
export function writeKernelLabel(id: string): string {
  return PREFIX + JSON.stringify({ kernel: id });
}

/** Names a zygote's process, with all that it takes to use it. */
export function writeZygoteLabel(address: ZygoteAddress): string {
  return PREFIX + JSON.stringify({ zygote: address });
}

/** Parses a label; undefined when it is none of this plugin. */
export function readKernelLabel(text: string): KernelLabel | undefined {
  if (!text.startsWith(PREFIX)) return undefined;
  try {
    return label.parse(JSON.parse(text.slice(PREFIX.length)));
  } catch {
    // Of another version: a kernel all the same, which nobody can know any more.
    return { kernel: "" };
  }
}
