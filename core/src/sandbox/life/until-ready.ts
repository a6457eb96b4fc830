import type { Clock } from "../../kernel/clock.js";
import { messageOf, SandboxError } from "../../kernel/errors.js";
import { sleep, within } from "../../kernel/time.js";
import { runToEnd } from "../contract/run-to-end.js";
import { processEnvironment } from "../model/environment.js";
import type { LiveSandbox } from "../model/live-sandbox.js";
import type { ReadinessProbe } from "../model/readiness-probe.js";
import type { ReadinessSettings } from "../model/sandboxes-config.js";
import { once } from "node:events";
import { type IncomingMessage, request as httpRequest } from "node:http";

/** A sandbox was not ready in time; the message has the outcome of the last attempt that was not cut short. */
export class NotReady extends SandboxError {
  constructor(timeoutMs: number, why: string) {
    super("sandbox_not_ready", `the sandbox was not ready within ${timeoutMs} ms: ${why}`);
  }
}

interface ReadinessOptions {
  readonly settings: ReadinessSettings;
  readonly clock: Clock;
  /** Ends the waiting at once; a running attempt ends with its sandbox. */
  readonly signal: AbortSignal;
}

type ProbedSandbox = Pick<LiveSandbox, "record" | "runtime">;

/** Resolves when a probe of a sandbox succeeds. @throws NotReady, or the signal's reason. */
export async function untilReady(
  sandbox: ProbedSandbox,
  probe: ReadinessProbe,
  { settings, clock, signal }: ReadinessOptions,
): Promise<void> {
  const timeoutMs = probe.timeoutMs ?? settings.timeout;
  const intervalMs = probe.intervalMs ?? settings.interval;
  const endsAtMs = clock.now() + timeoutMs;
  for (let before: string | undefined; ;) {
    const leftMs = Math.max(endsAtMs - clock.now(), 0);
    const mayTakeMs = Math.min(settings.attemptTimeout, leftMs);
    const isCutShort = mayTakeMs < settings.attemptTimeout;
    const overdue = (): Error =>
      new Error((isCutShort ? before : undefined) ?? `an attempt took longer than ${mayTakeMs} ms`);
    const failure = await within((until) => attempt(sandbox, probe, until), {
      clock,
      timeoutMs: mayTakeMs,
      signal,
      overdue,
    }).catch((error: unknown) => {
      signal.throwIfAborted();
      return messageOf(error);
    });
    if (failure === undefined) return;
    if (clock.now() + intervalMs >= endsAtMs) throw new NotReady(timeoutMs, failure);
    before = failure;
    await sleep(clock, intervalMs, signal);
  }
}

/** Reason why it is not ready, undefined when it is. */
async function attempt(
  sandbox: ProbedSandbox,
  probe: ReadinessProbe,
  until: AbortSignal,
): Promise<string | undefined> {
  if (probe.type === "shell") return runShell(sandbox, probe, until);
  const status = await probePort(sandbox, probe, until);
  const isReady = probe.type === "tcp" || (status >= 200 && status < 400);
  return isReady ? undefined : `port ${probe.port} answers ${status}`;
}

async function runShell(
  sandbox: ProbedSandbox,
  { command }: Extract<ReadinessProbe, { readonly type: "shell" }>,
  until: AbortSignal,
): Promise<string | undefined> {
  const { runtime } = sandbox;
  const [path = "", ...args] = typeof command === "string" ? ["/bin/sh", "-lc", command] : command;
  const env = processEnvironment(sandbox, await runtime.user());
  const started = await runtime.spawn({ path, args, env, input: "none" });
  const { code, signal } = await runToEnd(started, { signal: until });
  if (code === 0) return undefined;
  return code === undefined
    ? `its command was ended by ${signal}`
    : `its command ended with exit code ${code}`;
}

interface ProbedPort {
  readonly port: number;
  /** Asked for by `GET`, with a query, if any. Without a path the port is only connected to. */
  readonly path?: string | undefined;
}

/**
 * Connects to a port of a sandbox. @returns the status of its answer, 0 without a path. Redirects are not followed.
 * @throws SandboxError, or an error of the connection, when nothing answers.
 */
export async function probePort(
  { runtime }: Pick<LiveSandbox, "runtime">,
  { port, path }: ProbedPort,
  until: AbortSignal,
): Promise<number> {
  const stream = await runtime.dial(port, until);
  // Only the answer counts, not how the stream ends.
  stream.on("error", () => {});
  try {
    if (path === undefined) return 0;
    const request = httpRequest({
      createConnection: () => stream,
      headers: { "host": `localhost:${port}`, "user-agent": "coppice-readiness" },
      path,
      signal: until,
    });
    // Later errors do not count.
    request.on("error", () => {});
    request.end();
    const [response] = (await once(request, "response")) as [IncomingMessage];
    response.destroy();
    return response.statusCode ?? 0;
  } finally {
    stream.destroy();
  }
}
