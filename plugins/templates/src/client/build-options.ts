import { text } from "node:stream/consumers";
import { SandboxError } from "@coppice/core";

/** Of every verb that speaks to a server. */
export const URL_OPTION = [
  "--url <url>",
  "the server; else COPPICE_URL, or the one of the configuration",
] as const;

/** Account of a registry. */
export const USERNAME_OPTION = ["--username <name>", "account of the registry"] as const;
export const PASSWORD_OPTION = ["--password-stdin", "reads its password from standard input"] as const;

interface AccountOptions {
  readonly username?: string | undefined;
  readonly passwordStdin?: true | undefined;
}

export const CPU_OPTION = ["--cpu-count <number>", "CPUs of its sandboxes"] as const;
export const MEMORY_OPTION = ["--memory-mb <number>", "MiB of memory of its sandboxes"] as const;
export const CACHE_OPTION = ["--no-cache", "runs every step again"] as const;

interface BuildLimits {
  readonly cpuCount?: string | undefined;
  readonly memoryMb?: string | undefined;
}

/**
 * The account of a command line, as a request has it; undefined without one. The password comes from stdin: other users
 * of this machine see arguments.
 */
export async function accountOf({ username, passwordStdin }: AccountOptions): Promise<object | undefined> {
  if (username === undefined && !passwordStdin) return undefined;
  if (username === undefined || !passwordStdin)
    throw new SandboxError("usage_invalid", "an account is --username and --password-stdin");
  const password = (await text(process.stdin)).replace(/\r?\n$/, "");
  return { type: "registry", username, password };
}

/** Body of `POST /v3/templates`. @throws SandboxError usage_invalid */
export function requestOf(name: string, { cpuCount, memoryMb }: BuildLimits): object {
  return {
    name,
    cpuCount: countOf("--cpu-count", cpuCount),
    memoryMB: countOf("--memory-mb", memoryMb),
  };
}

function countOf(option: string, text: string | undefined): number | undefined {
  if (text === undefined || /^[1-9]\d{0,8}$/.test(text)) return text === undefined ? undefined : Number(text);
  throw new SandboxError("usage_invalid", `${option} is a number`);
}
