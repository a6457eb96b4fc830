import { text } from "node:stream/consumers";
import { SandboxError } from "@coppice/core";

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
