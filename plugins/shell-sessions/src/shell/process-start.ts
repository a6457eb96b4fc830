/** Arguments and input of a bash that runs a command in the state of a session's snapshot. */
export interface ProcessStart {
  readonly args: readonly string[];
  /** To be written to its stdin, which is closed then. */
  readonly input: Buffer;
}

/** @param snapshot of `Session.snapshot`. @param command text for bash, without NUL bytes. */
export function processStart(snapshot: Buffer, command: string): ProcessStart {
  const shown = command.slice(0, SHOWN_LENGTH);
  return {
    args: ["--norc", "--noprofile", "-c", RUN, "bash", shown],
    input: Buffer.concat([snapshot, NUL, Buffer.from(command), NUL]),
  };
}

/** Length of the beginning of a command that lists of commands show. */
const SHOWN_LENGTH = 1024;
const NUL = Buffer.alloc(1);
/** Reads the state and the command, and evaluates one in the other. */
const RUN =
  "IFS= read -r -d '' __coppice_state; IFS= read -r -d '' __coppice_command; exec </dev/null; " +
  'set --; eval "unset __coppice_state; $__coppice_state"; eval "unset __coppice_command; $__coppice_command"';
