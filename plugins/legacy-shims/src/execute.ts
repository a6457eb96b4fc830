import { type LiveSandbox, SandboxError } from "@coppice/core";
import { type Commands, describeExit, type StartCommand } from "@coppice/plugin-commands";
import { BoundedBytes } from "./bounded-bytes.js";

export interface ExecuteOptions {
  readonly request: StartCommand;
  /** Bytes kept of each stream. */
  readonly maxOutputBytes: number;
  /** Aborted when the client leaves; the command lives on until its time-out. */
  readonly signal: AbortSignal;
}

/** Runs a command for the answer of /exec. @throws as `Commands.start`; canceled, unavailable when cut off. */
export async function execute(
  commands: Commands,
  sandbox: LiveSandbox,
  { request, maxOutputBytes, signal }: ExecuteOptions,
) {
  const command = await commands.start(sandbox, request);
  const stdout = new BoundedBytes(maxOutputBytes);
  const stderr = new BoundedBytes(maxOutputBytes);
  for await (const { stream, data } of command.subscribe(signal)) {
    (stream === "stderr" ? stderr : stdout).push(data);
  }
  if (command.end === undefined) throw new SandboxError("client_gone", "the client is gone");
  const { exit } = command.end;
  if (exit === undefined) throw new SandboxError("sandbox_ended", "the sandbox ended while the command ran");
  return {
    stdout: stdout.text,
    stderr: stderr.text,
    exit_code: describeExit(exit).exitCode,
    timed_out: command.expired.aborted,
    truncated: stdout.isTruncated || stderr.isTruncated,
  };
}
