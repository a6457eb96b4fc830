import { z } from "zod";

/** Address and secret of a zygote inside its sandbox. */
export type ZygoteAddress = z.infer<typeof zygote>;

/** Label of a process of this plugin, for the server that finds it running. */
export type KernelLabel = { readonly kernel: string } | { readonly zygote: ZygoteAddress };

const PREFIX = "jupyter:";

const zygote = z.object({ name: z.string(), secret: z.string() });
const label = z.union([z.object({ kernel: z.string() }), z.object({ zygote })]);

/** Label of a kernel's process. Its connection data stay on the host. */
export function writeKernelLabel(id: string): string {
  return PREFIX + JSON.stringify({ kernel: id });
}

/** Label of a zygote's process, with its connection data. */
export function writeZygoteLabel(address: ZygoteAddress): string {
  return PREFIX + JSON.stringify({ zygote: address });
}

/** Parses a label; undefined for other plugins' labels. */
export function readKernelLabel(text: string): KernelLabel | undefined {
  if (!text.startsWith(PREFIX)) return undefined;
  try {
    return label.parse(JSON.parse(text.slice(PREFIX.length)));
  } catch {
    // Of another version: a kernel that cannot be used any more.
    return { kernel: "" };
  }
}
