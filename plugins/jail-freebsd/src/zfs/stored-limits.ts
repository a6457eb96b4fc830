import { type FullLimits, fullLimits } from "@coppice/core/backend";

/** The limits of a sandbox as a property of its dataset. */
export function limitsText({ cpuCount, diskMiB, memoryMiB, processes }: FullLimits): string {
  return [cpuCount, memoryMiB, diskMiB, processes].join(":");
}

export function limitsOf(text: string | undefined, defaults: FullLimits): FullLimits {
  if (text === undefined) return defaults;
  const [cpuCount, memoryMiB, diskMiB, processes] = text.split(":").map(Number);
  return fullLimits({ cpuCount, memoryMiB, diskMiB, processes }, defaults);
}
