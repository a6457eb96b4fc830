import { type LiveSandbox, SandboxError } from "@coppice/core";
import { type Commands, describeExit, type StartCommand } from "@coppice/plugin-commands";
import { BoundedBytes } from "./bounded-bytes.js";

export interface ExecuteOptions {
  /** Bytes kept of each stream. */
  readonly maxOutputBytes: number;
  /** Who waits for the result; the command lives on without them, until its time-out. */
  readonly signal: AbortSignal;
}

/** A command that has ended, and what it wrote. */
export interface Execution {
  readonly stdout: string;
  readonly stderr: string;
  /** True when one of the texts is not all that there was. */
  readonly isTruncated: boolean;
  /** -1 for a command that a signal ended. */
  readonly exitCode: number;
  /** True when its time-out ended it. */
  readonly isTimedOut: boolean;
}

/**
 * Runs a command to its end.
 * @throws what `Commands.start` throws, canceled when nobody waits any more, unavailable when the sandbox
 * ended first.
 */
export async function execute(
  commands: Commands,
  sandbox: LiveSandbox,
  request: StartCommand,
  options: ExecuteOptions,
): Promise<Execution> {
  const command = await commands.start(sandbox, request);
  const stdout = new BoundedBytes(options.maxOutputBytes);
  const stderr = new BoundedBytes(options.maxOutputBytes);
  for await (const { stream, data } of command.subscribe(options.signal)) {
    (stream === "stderr" ? stderr : stdout).push(data);
  }
  if (command.end === undefined) throw new SandboxError("canceled", "the client is gone");
  const { exit } = command.end;
  if (exit === undefined) throw new SandboxError("unavailable", "the sandbox ended while the command ran");
  return {
    stdout: stdout.text,
    stderr: stderr.text,
    isTruncated: stdout.isTruncated || stderr.isTruncated,
    exitCode: describeExit(exit).exitCode,
    isTimedOut: command.expired.aborted,
  };
}
