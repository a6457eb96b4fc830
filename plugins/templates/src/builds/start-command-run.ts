import { setTimeout as delay } from "node:timers/promises";
import { type Clock, messageOf, sleep } from "@coppice/core";
import type { Sandbox } from "@coppice/core/backend";
import { BuildFailure } from "../model/build-failure.js";
import type { LogLevel } from "../model/build-log.js";
import { CommandFailure, type ContextCommand, mustRunInContext } from "../guest/context-command.js";
import { durationText } from "./duration-text.js";
import { runScript } from "../guest/guest-run.js";
import type { StartCommand } from "../model/layer.js";

export interface StartCommandRunOptions {
  readonly templateId: string;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly print: (level: LogLevel, line: string) => void;
  /** Most time until the ready command succeeds. */
  readonly readyTimeoutMs: number;
}

const READY_PAUSE_MS = 2_000;
/** Time for the first output, so that it comes before what follows in the log. */
const FIRST_OUTPUT_MS = 1_000;
const MOST_PORTS = 64;

/** Prints the TCP ports that something listens on. */
const PRINT_PORTS = `
for file in /proc/net/tcp /proc/net/tcp6; do
  [ ! -r "$file" ] || while read -r _ local _ state _; do
    [ "$state" != 0A ] || echo $((16#\${local##*:}))
  done < "$file"
done
`;

/**
 * Runs a start command until its ready command succeeds, then ends it.
 * @returns the ports that it listened on.
 * @throws BuildFailure, the signal's reason
 */
export async function runStartCommand(
  sandbox: Sandbox,
  start: StartCommand,
  options: StartCommandRunOptions,
): Promise<readonly number[]> {
  const { signal, print, templateId } = options;
  if (start.command === "") {
    await awaitReady(sandbox, start, options);
    return [];
  }
  const others = new Set(await listeningPorts(sandbox, signal));
  const stop = new AbortController();
  const failing = new AbortController();
  const first = Promise.withResolvers<void>();
  print("info", `Running start command: ${start.command}`);
  const running = mustRunInContext(sandbox, {
    ...commandOf(start, start.command),
    templateId,
    signal,
    stop: stop.signal,
    print: (level, line) => {
      print(level, line);
      first.resolve();
    },
    level: "info",
    prefix: "start",
  });
  const ended = running.catch((error: unknown) => {
    if (!stop.signal.aborted) failing.abort(error);
  });
  try {
    await Promise.race([first.promise, ended, delay(FIRST_OUTPUT_MS)]);
    const until = AbortSignal.any([signal, failing.signal]);
    await awaitReady(sandbox, start, { ...options, signal: until });
    until.throwIfAborted();
    return (await listeningPorts(sandbox, signal)).filter((port) => !others.has(port));
  } catch (error) {
    signal.throwIfAborted();
    if (!failing.signal.aborted) throw error;
    const { reason } = failing.signal;
    if (!(reason instanceof CommandFailure)) throw reason;
    const text = `start command failed: error running start command: ${reason.message}`;
    throw new BuildFailure(text, undefined, { cause: reason });
  } finally {
    stop.abort();
    await ended;
  }
}

async function awaitReady(
  sandbox: Sandbox,
  start: StartCommand,
  { clock, signal, print, templateId, readyTimeoutMs }: StartCommandRunOptions,
): Promise<void> {
  const { ready = "sleep 0" } = start;
  const late = AbortSignal.timeout(readyTimeoutMs);
  const until = AbortSignal.any([signal, late]);
  print("info", `Waiting for template to be ready: ${ready}`);
  for (;;) {
    try {
      const command = { ...commandOf(start, ready), templateId, signal: until, print };
      await mustRunInContext(sandbox, { ...command, level: "debug", prefix: "ready" });
      print("info", "Template is ready");
      return;
    } catch (error) {
      if (!until.aborted) {
        if (!(error instanceof CommandFailure)) throw error;
        print("debug", `Template is not ready: ${messageOf(error)}`);
        await sleep(clock, READY_PAUSE_MS, until).catch(() => undefined);
      }
      signal.throwIfAborted();
      if (!late.aborted) continue;
      const text = `ready command failed: ready command timed out after ${durationText(readyTimeoutMs)}`;
      throw new BuildFailure(text, undefined, { cause: error });
    }
  }
}

function commandOf(
  { user, workdir, environment }: StartCommand,
  line: string,
): Pick<ContextCommand, "line" | "context"> {
  return { line, context: { user, workdir, environment } };
}

async function listeningPorts(sandbox: Sandbox, signal: AbortSignal): Promise<readonly number[]> {
  const { stdout } = await runScript(sandbox, PRINT_PORTS, { args: [], signal });
  const ports = stdout.split("\n").map(Number);
  return [...new Set(ports)]
    .filter((port) => port > 0 && port < 65_536)
    .toSorted((a, b) => a - b)
    .slice(0, MOST_PORTS);
}
