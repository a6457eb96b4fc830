import { z } from "zod";
import { parseJson } from "../json/parse-json.js";

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
