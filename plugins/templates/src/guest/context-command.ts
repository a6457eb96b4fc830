import { processEnvironment } from "@coppice/core";
import { type Exit, exitText, type Sandbox, SandboxError } from "@coppice/core/backend";
import type { BuildContext } from "../model/layer.js";
import type { LogLevel } from "../model/build-record.js";
import { runInGuest } from "./guest-run.js";
import { OutputLines } from "../model/output-lines.js";

export interface ContextCommand {
  /** A line for `bash -l -c`. */
  readonly line: string;
  readonly context: BuildContext;
  readonly templateId: string;
  readonly signal: AbortSignal;
  /** As `GuestRun.stop`. */
  readonly stop?: AbortSignal;
  readonly print: (level: LogLevel, line: string) => void;
  readonly level: LogLevel;
  /** Begins the lines of its output. */
  readonly prefix: string;
}

/** A command of a client did not succeed. The message has E2B's words. */
export class CommandFailure extends Error {
  override readonly name = "CommandFailure";
}

const MORE_PATH = ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/** Variables for a command in a context: programs are found whatever a step has made of PATH. */
export function commandEnvironment(
  environment: BuildContext["environment"],
): Readonly<Record<string, string>> {
  const { PATH: path } = environment;
  if (path === undefined || path.endsWith(MORE_PATH)) return environment;
  return { ...environment, PATH: path + MORE_PATH };
}

/**
 * Runs a command line of a client in the context of a build, and logs its output.
 * @returns how it ended.
 * @throws CommandFailure when it cannot be started, the signal's reason
 */
async function runInContext(sandbox: Sandbox, command: ContextCommand): Promise<Exit> {
  const { line, context, templateId, signal, stop, print, level, prefix } = command;
  const { environment, user: name, workdir } = context;
  const lines = new OutputLines((stream, text) => print(level, `[${prefix}] [${stream}]: ${text}`));
  try {
    const user = await sandbox.user(name).catch((error: unknown) => {
      if (!(error instanceof SandboxError) || error.code !== "not_found") throw error;
      throw new SandboxError("user_unknown", `invalid username: '${name}'`, { cause: error });
    });
    const record = { id: sandbox.id, template: templateId, environment: {} };
    const env = processEnvironment({ record }, user, commandEnvironment(environment));
    return await runInGuest(
      sandbox,
      { path: "/bin/bash", args: ["-l", "-c", line], env, cwd: workdir ?? user.home, user: name },
      { signal, onOutput: (output) => lines.push(output), ...(stop && { stop }) },
    );
  } catch (error) {
    signal.throwIfAborted();
    if (!(error instanceof SandboxError)) throw error;
    throw new CommandFailure(`command failed: ${error.code}: ${error.message}`, { cause: error });
  } finally {
    lines.end();
  }
}

/** Runs a command line that must succeed. @throws CommandFailure `exit status 1`, or as `runInContext` */
export async function mustRunInContext(sandbox: Sandbox, command: ContextCommand): Promise<void> {
  const exit = await runInContext(sandbox, command);
  if (exit.code !== 0) throw new CommandFailure(exitText(exit));
}
