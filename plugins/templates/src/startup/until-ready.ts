import { type Clock, type LiveSandbox, probePort, processEnvironment, sleep } from "@coppice/core";
import { commandEnvironment } from "../guest/context-command.js";
import { runInGuest } from "../guest/guest-run.js";
import type { TemplatesConfig } from "../templates-config.js";
import type { StartCommand } from "../model/layer.js";

export interface UntilReadyOptions {
  readonly settings: Pick<TemplatesConfig, "readyInterval" | "longestSleep">;
  readonly clock: Clock;
  /** Ends the waiting, and an attempt that runs. */
  readonly signal: AbortSignal;
}

const SLEEP = /^\s*sleep\s+(\d{1,6}(?:\.\d{1,6})?)s?\s*$/;

/** Resolves when the ready command of a started template succeeds. @throws the signal's reason. */
export async function untilReady(
  sandbox: LiveSandbox,
  start: StartCommand,
  options: UntilReadyOptions,
): Promise<void> {
  if (start.ready === undefined) return;
  const seconds = SLEEP.exec(start.ready)?.[1];
  if (seconds !== undefined) return untilListening(sandbox, start.ports, Number(seconds) * 1000, options);
  const { settings, clock, signal } = options;
  while (!(await succeeds(sandbox, { ...start, command: start.ready }, signal)))
    await sleep(clock, settings.readyInterval, signal);
}

/** Stands for a ready command that only sleeps: what listened at the end of the build listens again. */
async function untilListening(
  sandbox: LiveSandbox,
  ports: readonly number[],
  sleepMs: number,
  { settings, clock, signal }: UntilReadyOptions,
): Promise<void> {
  if (ports.length === 0) {
    await sleep(clock, Math.min(sleepMs, settings.longestSleep), signal);
    return;
  }
  const endsAtMs = clock.now() + sleepMs;
  const left = new Set(ports);
  while (clock.now() < endsAtMs) {
    for (const port of left) if (await listens(sandbox, port, signal)) left.delete(port);
    if (left.size === 0) return;
    await sleep(clock, Math.min(settings.readyInterval, endsAtMs - clock.now()), signal);
  }
}

async function listens(sandbox: LiveSandbox, port: number, signal: AbortSignal): Promise<boolean> {
  try {
    await probePort(sandbox, { port }, signal);
    return true;
  } catch {
    signal.throwIfAborted();
    return false;
  }
}

async function succeeds(
  sandbox: LiveSandbox,
  { command, user: name, workdir, environment }: StartCommand,
  signal: AbortSignal,
): Promise<boolean> {
  const { runtime, record } = sandbox;
  const user = await runtime.user(name);
  const extra = { ...commandEnvironment(environment), ...record.environment };
  const exit = await runInGuest(
    runtime,
    {
      path: "/bin/bash",
      args: ["-l", "-c", command],
      env: processEnvironment(sandbox, user, extra),
      cwd: workdir ?? user.home,
      user: name,
    },
    { signal },
  );
  return exit.code === 0;
}
