import { type LiveSandbox, SandboxError } from "@coppice/core";
import { type Commands, describeExit, type StartCommand } from "@coppice/plugin-commands";
import { BoundedBytes } from "./bounded-bytes.js";

export interface ExecuteOptions {
  /** Bytes kept of each stream. */
  readonly maxOutputBytes: number;
  /** Aborted when the client leaves; the command lives on until its time-out. */
  readonly signal: AbortSignal;
}

export interface Execution {
  readonly stdout: string;
  readonly stderr: string;
  readonly isTruncated: boolean;
  /** -1 for a command that a signal ended. */
  readonly exitCode: number;
  readonly isTimedOut: boolean;
}

/**
 * Runs a command to its end.
 * @throws the errors of `Commands.start`, canceled when the client has left, unavailable when the sandbox ended first.
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
  if (command.end === undefined) throw new SandboxError("client_gone", "the client is gone");
  const { exit } = command.end;
  if (exit === undefined) throw new SandboxError("sandbox_ended", "the sandbox ended while the command ran");
  return {
    stdout: stdout.text,
    stderr: stderr.text,
    isTruncated: stdout.isTruncated || stderr.isTruncated,
    exitCode: describeExit(exit).exitCode,
    isTimedOut: command.expired.aborted,
  };
}
