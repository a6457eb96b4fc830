import { describeExit, type LoggedCommand } from "@coppice/plugin-commands";

/** The exit code of a command; null while it runs, and when its exit is unknown. */
export function exitCodeOf({ end }: Pick<LoggedCommand, "end">): number | null {
  return end?.exit === undefined ? null : describeExit(end.exit).exitCode;
}

/** The status of a command, as the contract has it. */
export function commandBody(command: LoggedCommand) {
  return {
    command_id: command.id,
    phase: command.phase,
    exit_code: exitCodeOf(command),
    started_at: new Date(command.startedAtMs).toISOString(),
    ...(command.end !== undefined && { exited_at: new Date(command.end.endedAtMs).toISOString() }),
  };
}
