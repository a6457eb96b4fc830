import { type Forked, type Logger, SandboxError, type TenantSnapshots, toHttpError } from "@coppice/core";
import { z } from "zod";
import { readinessFields, requestedProbe } from "../bodies/readiness-probe.js";
import { requestedTimeoutMs, timeoutFields } from "../bodies/requested-timeout.js";
import { sandboxBody } from "../bodies/sandbox-body.js";

/** The body of `POST /sandboxes/:id/fork`. */
export const forkBody = z.object({ ...timeoutFields, ...readinessFields, count: z.int32().nullish() });

/**
 * Makes sandboxes that begin with the files of another one, which goes on.
 * @throws SandboxError as `TenantSnapshots.fork`; invalid_argument for a count that is not 1 to `most`.
 */
export async function forkSandbox(
  snapshots: TenantSnapshots,
  id: string,
  options: {
    readonly body: z.infer<typeof forkBody>;
    readonly defaultTimeoutMs: number;
    readonly most: number;
    readonly signal: AbortSignal;
  },
): Promise<readonly Forked[]> {
  const { body, defaultTimeoutMs, most, signal } = options;
  const count = body.count ?? 1;
  if (count < 1) throw new SandboxError("request_invalid", "Count must be at least 1");
  if (count > most) throw new SandboxError("request_invalid", `Count cannot be greater than ${most}`);
  const timeoutMs = requestedTimeoutMs(body) ?? defaultTimeoutMs;
  return snapshots.fork(id, { count, timeoutMs, readinessProbe: requestedProbe(body) }, signal);
}

export function forkedBody(
  forked: Forked,
  { domain, log }: { readonly domain: string | undefined; readonly log: Logger },
) {
  if ("sandbox" in forked) return { sandbox: sandboxBody(forked.sandbox, domain) };
  const { status, message } = toHttpError(forked.error, log);
  return { error: { code: status, message } };
}
