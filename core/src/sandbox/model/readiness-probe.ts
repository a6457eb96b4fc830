import { SandboxError } from "../../kernel/errors.js";
import type { ReadinessSettings } from "./sandboxes-config.js";

/** Probe for the readiness of a sandbox; it is repeated until it succeeds. */
export type ReadinessProbe = (
  | {
      /** Succeeds when a port inside accepts connections. */
      readonly type: "tcp";
      readonly port: number;
    }
  | {
      /** Succeeds when a port inside answers `GET <path>` with a status of 200 to 399. */
      readonly type: "http";
      readonly port: number;
      /** With a query, if any. */
      readonly path: string;
    }
  | {
      /** Succeeds when a command of the sandbox's default user ends with exit code 0. */
      readonly type: "shell";
      /** A line for `/bin/sh -lc`, or a program and its arguments. */
      readonly command: string | readonly string[];
    }
) & {
  /** Time in which it has to succeed; the server's default when absent. */
  readonly timeoutMs?: number | undefined;
  /** Time between two attempts; the server's default when absent. */
  readonly intervalMs?: number | undefined;
};

/** @throws SandboxError invalid_argument for a probe that is longer or more frequent than the server allows. */
export function checkReadinessProbe(
  { timeoutMs, intervalMs }: ReadinessProbe,
  { maximumTimeout, leastInterval }: Pick<ReadinessSettings, "maximumTimeout" | "leastInterval">,
): void {
  if (timeoutMs !== undefined && !(timeoutMs > 0 && timeoutMs <= maximumTimeout)) {
    throw refusal(`its time-out is more than 0 and at most ${maximumTimeout} ms`);
  }
  if (intervalMs !== undefined && !(intervalMs >= leastInterval && intervalMs <= maximumTimeout)) {
    throw refusal(`its interval is at least ${leastInterval} ms and at most ${maximumTimeout} ms`);
  }
}

function refusal(why: string): SandboxError {
  return new SandboxError("readiness_probe_invalid", `Invalid readiness probe: ${why}`);
}
