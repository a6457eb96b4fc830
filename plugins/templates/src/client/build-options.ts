import { text } from "node:stream/consumers";
import { SandboxError } from "@coppice/core";

/** Options of every verb that speaks to a server. */
export const CONNECTION = { url: { type: "string" }, key: { type: "string" } } as const;

/** As the usage shows them. */
export const CONNECTION_USAGE = "[--url http://127.0.0.1:3000] [--key <API key or JWT>]";

/** Options for an account of a registry. */
export const ACCOUNT = {
  "username": { type: "string" },
  "password-stdin": { type: "boolean", default: false },
} as const;

export const ACCOUNT_USAGE = "[--username name --password-stdin]";

/**
 * The account of a command line, as a request has it; undefined without one. The password comes from stdin: other users
 * of this machine see arguments.
 */
export async function accountOf(values: {
  readonly "username"?: string | undefined;
  readonly "password-stdin": boolean;
}): Promise<object | undefined> {
  const { username, "password-stdin": isRead } = values;
  if (username === undefined && !isRead) return undefined;
  if (username === undefined || !isRead)
    throw new SandboxError("usage_invalid", "an account is --username and --password-stdin");
  const password = (await text(process.stdin)).replace(/\r?\n$/, "");
  return { type: "registry", username, password };
}

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
