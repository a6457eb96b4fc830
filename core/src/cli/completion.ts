import type { Command } from "@commander-js/extra-typings";
import { UsageError } from "./arguments.js";

// The shells ask the program itself, so that a script of an older version completes newer verbs.
const SCRIPTS: Readonly<Record<string, string>> = {
  bash: `_coppice() {
  local IFS=$'\\n'
  COMPREPLY=($(coppice __complete "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _coppice coppice
`,
  zsh: `#compdef coppice
_coppice() {
  local -a found=(\${(f)"$(coppice __complete "\${(@)words[2,CURRENT]}" 2>/dev/null)"})
  (( $#found )) && compadd -a found || _files
}
compdef _coppice coppice
`,
  fish: `complete -c coppice -a '(coppice __complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
`,
};

export const SHELLS = Object.keys(SCRIPTS);

/** Prints the script of a shell. @throws UsageError */
export function completion(shell: string): number {
  const script = Object.hasOwn(SCRIPTS, shell) ? SCRIPTS[shell] : undefined;
  if (script === undefined)
    throw new UsageError(`there is a script for ${SHELLS.join(", ")}, not '${shell}'`);
  process.stdout.write(script);
  return 0;
}

/** Verbs, or options, that may stand in place of the last of these words. */
export function candidates(program: Command, words: readonly string[]): readonly string[] {
  let command: Pick<Command, "commands" | "options"> = program;
  for (const word of words.slice(0, -1))
    command = command.commands.find((each) => each.name() === word) ?? command;
  const typed = words.at(-1) ?? "";
  const all = typed.startsWith("-")
    ? [...command.options.map(({ long }) => long ?? ""), "--help"]
    : command.commands.map((each) => each.name());
  return all.filter((name) => name !== "" && name.startsWith(typed));
}
