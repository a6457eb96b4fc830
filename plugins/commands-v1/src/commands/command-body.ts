import { constants } from "node:os";
import type { CommandEnd, LoggedCommand } from "@coppice/plugin-commands";

const SIGNAL_BASE = 128;

/** The exit code of a command, as a shell has it; null while it runs, and when its exit is unknown. */
export function exitCodeOf({ end }: { readonly end: CommandEnd | undefined }): number | null {
  if (end?.exit === undefined) return null;
  const { code, signal } = end.exit;
  return signal === undefined ? code : SIGNAL_BASE + constants.signals[signal];
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
