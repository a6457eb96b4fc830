import { SandboxError } from "@coppice/core";
import { CONNECTION, CONNECTION_USAGE } from "./connection-options.js";

/** Options of the verbs that build templates. */
export const BUILD_OPTIONS = {
  ...CONNECTION,
  "cpu-count": { type: "string" },
  "memory-mb": { type: "string" },
  "no-cache": { type: "boolean", default: false },
} as const;

export const BUILD_USAGE = `[--cpu-count 2] [--memory-mb 1024] [--no-cache] ${CONNECTION_USAGE}`;

/** Body of `POST /v3/templates`. @throws SandboxError usage_invalid */
export function requestOf(
  name: string,
  values: { readonly "cpu-count"?: string | undefined; readonly "memory-mb"?: string | undefined },
): object {
  return {
    name,
    cpuCount: countOf("--cpu-count", values["cpu-count"]),
    memoryMB: countOf("--memory-mb", values["memory-mb"]),
  };
}

function countOf(option: string, text: string | undefined): number | undefined {
  if (text === undefined || /^[1-9]\d{0,8}$/.test(text)) return text === undefined ? undefined : Number(text);
  throw new SandboxError("usage_invalid", `${option} is a number`);
}
