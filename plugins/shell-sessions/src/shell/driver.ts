/**
 * The bash side of a session. The shell reads its script from a pipe, byte by byte, as it does for every pipe: a function
 * can read the bytes behind its own line as data. So a command is never parsed as part of a script, and nothing in its
 * text can end or swallow what follows it.
 *
 * Each unit of data begins with GUARD, which is no command: where the function that was to read it did not run (after
 * `set -n`, or because a builtin was hidden by a function), bash meets a syntax error, and exits at once. So a shell that
 * lost its way never hangs.
 *
 * What the driver says goes to the pipes of stdout (descriptor 11) and stderr (12), among the output of commands, so that
 * its place tells which output came before: RS, a nonce that the command cannot know, a letter, contents, NUL.
 * Descriptors 1 and 2 of the shell itself lead nowhere, so that traces and error messages about the driver do, too.
 */
import { randomBytes } from "node:crypto";

/** `begun` and `done` on both streams, `state` on stdout alone. */
export const MARKS = { begun: "B", done: "E", state: "S" } as const;

/** Length of the text of a nonce. */
export const NONCE_LENGTH = 32;
/** First byte of a mark: ASCII's record separator. */
export const MARK_BYTE = 0x1e;

export function newNonce(): string {
  return randomBytes(NONCE_LENGTH / 2).toString("hex");
}

const GUARD = ")";

// Variables that bash sets itself, and those of the driver.
const OWN_VARIABLES =
  "BASH*|COMP_*|DIRSTACK|EPOCH*|EUID|FUNCNAME|GROUPS|LINENO|PIPESTATUS|PPID|RANDOM|SECONDS|SHELLOPTS|SRANDOM|UID|_|__coppice_*";

/**
 * Script that makes a plain bash a session's shell. The bash is started in the sandbox's root directory: where sandboxes
 * are directories of the host, that is the prefix of a client's paths. Processes that say the state after SIGUSR1 ignore
 * the signal that ends the command, which is sent meanwhile. A state without its NUL is incomplete, and not used.
 * @param abortNonce nonce of the state that SIGUSR1 asks for.
 */
export function driverScript(abortNonce: string): string {
  return `exec 11>&1 12>&2 >/dev/null 2>&1
readonly __coppice_root=\${PWD%/}
__coppice_begin() {
  builtin printf '\\036%s${MARKS.begun}\\0' "$1" >&11; builtin printf '\\036%s${MARKS.begun}\\0' "$1" >&12
  builtin local IFS= __coppice_count __coppice_name __coppice_value
  builtin read -r -d '' __coppice_value; builtin read -r -d '' __coppice_value; builtin read -r -d '' __coppice_count
  __coppice_restore= __coppice_back= __coppice_failed=
  while (( __coppice_count-- > 0 )); do
    builtin read -r -d '' __coppice_name; builtin read -r -d '' __coppice_command
    if [[ -v $__coppice_name ]]; then
      :
      __coppice_restore+="builtin declare -g +x $__coppice_name; "
      __coppice_back=\${!__coppice_name@A}
      __coppice_restore+="\${__coppice_back/#declare /builtin declare -g }; "
    else __coppice_restore+="builtin unset -v $__coppice_name; "; fi
    builtin export "$__coppice_name=\${__coppice_command% }"
  done
  builtin read -r -d '' __coppice_command
  __coppice_back=
  if [[ -n $__coppice_value ]]; then
    __coppice_back=$PWD
    if ! builtin cd -- "$__coppice_root$__coppice_value" && ! builtin cd -- "$__coppice_value"; then
      builtin printf "Failed to change directory to '%s'\\n" "$__coppice_value" >&12
      __coppice_command= __coppice_failed=1
    fi
  fi
}
__coppice_end() {
  builtin local __coppice_status=$2 __coppice_cwd
  if [[ -n \${__coppice_failed-} ]]; then __coppice_status=1; fi
  if [[ -n \${__coppice_back-} ]]; then builtin cd -- "$__coppice_back" || builtin :; fi
  builtin eval "\${__coppice_restore-}" || builtin :
  builtin unset -v __coppice_command __coppice_restore __coppice_back __coppice_failed || builtin :
  __coppice_cwd=$PWD/
  builtin printf '\\036%s${MARKS.done}%s\\037%s\\0' "$1" "$__coppice_status" "/\${__coppice_cwd#"$__coppice_root/"}" >&11 &&
    builtin printf '\\036%s${MARKS.done}\\0' "$1" >&12 && builtin read -r __coppice_status
}
__coppice_state() {
  (
    builtin trap - ERR DEBUG RETURN EXIT; builtin set -f; builtin shopt -u extdebug
    __coppice_options=$2
    builtin printf '\\036%s${MARKS.state}' "$1"
    builtin shopt -p
    builtin printf 'builtin cd -- %q\\n' "$PWD"
    builtin printf 'umask %s\\n' "$(builtin umask)"
    while IFS= builtin read -r __coppice_name; do
      case $__coppice_name in ${OWN_VARIABLES}) ;; *) builtin declare -p -- "$__coppice_name" ;; esac
    done < <(builtin compgen -A variable)
    while IFS=' ' builtin read -r _ __coppice_flags __coppice_name; do
      case $__coppice_name in __coppice_*) builtin continue ;; esac
      builtin declare -f -- "$__coppice_name"
      case $__coppice_flags in -f) ;; *) builtin declare "$__coppice_flags" "$__coppice_name"; builtin printf 'declare %s %q\\n' "$__coppice_flags" "$__coppice_name" ;; esac
    done < <(builtin declare -F)
    builtin alias -p
    builtin printf '%s\\n' "$__coppice_options"
  ) >&11 && builtin printf '\\0' >&11
}
__coppice_snapshot() { __coppice_state "$1" "$(builtin set +o)"; builtin read -r -d '' __coppice_name; builtin unset -v __coppice_name; }
__coppice_abort() { builtin trap '' HUP INT QUIT TERM USR1; __coppice_state "$1" "$(builtin set +o)"; builtin exit 0; }
builtin readonly -f __coppice_begin __coppice_end __coppice_state __coppice_snapshot __coppice_abort
builtin trap '__coppice_abort ${abortNonce}' USR1
`;
}

export interface DrivenCommand {
  readonly nonce: string;
  /** Without NUL bytes, as everything else here. */
  readonly command: string | Buffer;
  /** Absolute. */
  readonly cwd?: string | undefined;
  /** Names are those of variables of bash. */
  readonly env?: Readonly<Record<string, string>> | undefined;
}

/** Input that has the shell evaluate a command. */
export function commandInput({ nonce, command, cwd = "", env = {} }: DrivenCommand): Buffer {
  const variables = Object.entries(env);
  const fields = [GUARD, cwd, String(variables.length), ...variables.flat()];
  // The driver's descriptors are set anew meanwhile, and so restored after a command that closes them.
  const evaluation = `\\builtin \\eval "$__coppice_command" </dev/null >&11 2>&12 11>&1 12>&2; \\__coppice_end ${nonce} "$?"`;
  return Buffer.concat([
    Buffer.from(`\\__coppice_begin ${nonce}\n${fields.map((field) => `${field}\0`).join("")}`),
    Buffer.from(command),
    Buffer.from(`\0${evaluation}\n${GUARD}\n`),
  ]);
}

/** Command that changes to the first of these directories that exists, and the variables that name them. */
export function enterCommand(directory: string, otherwise: string) {
  const command = `for __coppice_value in "$__coppice_first" "$__coppice_second" "$HOME"; do
  builtin cd -- "$__coppice_root$__coppice_value" || builtin cd -- "$__coppice_value" && break
done 2>/dev/null
unset -v __coppice_value`;
  return { command, env: { __coppice_first: directory, __coppice_second: otherwise } };
}

/** Input that has the shell say its state. */
export function stateInput(nonce: string): Buffer {
  return Buffer.from(`\\__coppice_snapshot ${nonce}\n${GUARD}\0`);
}
