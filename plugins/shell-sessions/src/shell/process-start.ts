interface ProcessCommand {
  /** Text for bash, without NUL bytes. */
  readonly command: string;
  /** Names are those of variables of bash. */
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** Absolute; the session's directory when absent. */
  readonly cwd?: string | undefined;
}

/** Arguments and input of a bash that runs a command in the state of a session's snapshot. */
interface ProcessStart {
  readonly args: readonly string[];
  /** To be written to its stdin, which is closed then. */
  readonly input: Buffer;
}

/** @param snapshot of `Session.snapshot`. The bash is to be started in the sandbox's root directory. */
export function processStart(snapshot: Buffer, { command, env = {}, cwd }: ProcessCommand): ProcessStart {
  const shown = command.slice(0, SHOWN_LENGTH);
  const prelude = Object.entries(env).map(([name, value]) => `export ${name}=${quoted(value)}\n`);
  if (cwd !== undefined) prelude.push(enter(cwd));
  const fields = [snapshot, Buffer.from(prelude.join("")), Buffer.from(command)];
  return {
    args: ["--norc", "--noprofile", "-c", RUN, "bash", shown],
    input: Buffer.concat(fields.flatMap((field) => [field, NUL])),
  };
}

/** State of a shell that was just started, in the form of a session's snapshot: it is in this directory, or at home. */
export function newState(directory: string): Buffer {
  const path = quoted(directory);
  return Buffer.from(
    `builtin cd -- "$__coppice_root"${path} || builtin cd -- ${path} || builtin cd -- "$HOME"`,
  );
}

/** Length of the beginning of a command that lists of commands show. */
const SHOWN_LENGTH = 1024;
const NUL = Buffer.alloc(1);
// The root is the prefix of paths where sandboxes are directories of the host.
const RUN = `__coppice_root=\${PWD%/}
for __coppice_name in state prelude command; do IFS= read -r -d '' "__coppice_$__coppice_name"; done
exec </dev/null
set --
eval "$__coppice_state" 2>/dev/null
eval "$__coppice_prelude"
eval "unset -v __coppice_root __coppice_name __coppice_state __coppice_prelude __coppice_command; $__coppice_command"`;

function enter(cwd: string): string {
  const text = quoted(`Failed to change directory to '${cwd}'`);
  return `{ builtin cd -- "$__coppice_root"${quoted(cwd)} || builtin cd -- ${quoted(cwd)}; } 2>/dev/null || { printf '%s\\n' ${text} >&2; exit 1; }\n`;
}

/** A text as one word of a shell. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", String.raw`'\''`)}'`;
}
