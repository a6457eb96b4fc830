import { exitCodeOf as codeOf } from "@coppice/core/backend";
import type { CommandEnd, LoggedCommand, StartCommand } from "@coppice/plugin-commands";
import { z } from "zod";

/** A command of a body. Every command is detached. */
export const startBody = z.object({
  argv: z.tuple([z.string().min(1)], z.string()),
  env: z.record(z.string(), z.string()).nullish(),
  cwd: z.string().nullish(),
  detach: z.boolean().nullish(),
});

export function toStartCommand({ argv, env, cwd }: z.infer<typeof startBody>): StartCommand {
  const [path, ...args] = argv;
  return { path, args, environment: env ?? undefined, cwd: cwd ?? undefined, input: "none" };
}

/** The exit code of a command, as a shell has it; null while it runs, and when its exit is unknown. */
export function exitCodeOf({ end }: { readonly end: CommandEnd | undefined }): number | null {
  return end?.exit === undefined ? null : codeOf(end.exit);
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
