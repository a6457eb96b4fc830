import { exitText } from "@coppice/core/backend";
import {
  type Clock,
  type LiveSandbox,
  messageOf,
  probePort,
  processEnvironment,
  SandboxError,
  sleep,
  type Startups,
  unlessAborted,
  within,
} from "@coppice/core";
import type { Commands, StartedCommand } from "@coppice/plugin-commands";
import { commandEnvironment } from "../guest/context-command.js";
import type { TemplatesConfig } from "../templates-config.js";
import type { StartCommand } from "../model/layer.js";
import { REASONS } from "../reasons.js";
import { runInGuest } from "../guest/guest-run.js";

interface UntilReadyOptions {
  readonly settings: Pick<TemplatesConfig, "readyInterval" | "longestSleep">;
  readonly clock: Clock;
  /** Ends the waiting, and an attempt that runs. */
  readonly signal: AbortSignal;
}

const SLEEP = /^\s*sleep\s+(\d{1,6}(?:\.\d{1,6})?)s?\s*$/;

/** Resolves when the ready command of a started template succeeds. @throws the signal's reason. */
async function untilReady(
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

type Startup = Parameters<Startups["add"]>[0];

interface StartCommandsOptions {
  /** Undefined where no plugin has commands. */
  readonly commands: Commands | undefined;
  readonly settings: Pick<TemplatesConfig, "startTimeout" | "readyInterval" | "longestSleep">;
  readonly clock: Clock;
}

/** Runs the start command of a template in each of its sandboxes, and waits until it is ready. */
export class StartCommands implements Startup {
  readonly #options: StartCommandsOptions;

  constructor(options: StartCommandsOptions) {
    this.#options = options;
  }

  /** False for a template with a ready command alone: it was ready at the end of its build. */
  concerns({ build }: LiveSandbox["record"]): boolean {
    return build?.start !== undefined && build.start.command !== "";
  }

  /** @throws SandboxError start_command_failed with the end of its stderr, or the signal's reason. */
  async start(sandbox: LiveSandbox, signal: AbortSignal): Promise<void> {
    const start = sandbox.record.build?.start;
    if (start === undefined) return;
    const { settings, clock } = this.#options;
    const watching = new AbortController();
    let tail = (): string => "";
    try {
      const started = await this.#run(sandbox, start);
      tail = outputTail(started, watching.signal);
      const overdue = (): Error => new Error(`it was not ready within ${settings.startTimeout / 1000} s`);
      await within(
        (until) =>
          Promise.race([
            untilReady(sandbox, start, { settings, clock, signal: until }),
            failureOf(started, until),
          ]),
        { clock, timeoutMs: settings.startTimeout, signal, overdue },
      );
    } catch (error) {
      signal.throwIfAborted();
      const told = [messageOf(error), tail()].filter((text) => text !== "").join(": ");
      throw new SandboxError(REASONS.start_command_failed, `start command failed: ${told}`, { cause: error });
    } finally {
      watching.abort();
    }
  }

  async #run(
    sandbox: LiveSandbox,
    { command, user, workdir, environment }: StartCommand,
  ): Promise<StartedCommand> {
    const { commands } = this.#options;
    if (commands === undefined) throw new Error("this server has no plugin for commands");
    return commands.start(sandbox, {
      path: "/bin/bash",
      args: ["-l", "-c", command],
      // A creator's variables go before those of the template.
      environment: { ...commandEnvironment(environment), ...sandbox.record.environment },
      cwd: workdir ?? "~",
      user,
      input: "none",
    });
  }
}

/** Rejects when a command fails; resolves never: one that ends well may have left programs behind. */
async function failureOf(started: StartedCommand, until: AbortSignal): Promise<never> {
  const { exit } = await started.ended;
  if (exit?.code !== 0) {
    const how = exit === undefined ? "its sandbox has ended" : exitText(exit);
    throw new Error(`error running start command: ${how}`);
  }
  return unlessAborted(until, () => new Promise<never>(() => {}));
}

const KEPT_BYTES = 2048;

/**
 * Keeps the end of a command's output until the signal aborts. Call it in the turn of the event loop in which the
 * command was started. @returns gives the end of its stderr, or of stdout where that is empty.
 */
function outputTail(command: StartedCommand, signal: AbortSignal): () => string {
  const kept = { stderr: Buffer.alloc(0), stdout: Buffer.alloc(0), terminal: Buffer.alloc(0) };
  void (async () => {
    for await (const { stream, data } of command.subscribe(signal))
      kept[stream] = Buffer.concat([kept[stream], data]).subarray(-KEPT_BYTES);
    // Its end is seen elsewhere.
  })().catch(() => {});
  return () => (kept.stderr.length > 0 ? kept.stderr : kept.stdout).toString("utf8").trim();
}
