import { Command } from "@commander-js/extra-typings";
import type { Plugin, VerbContext } from "../plugin/plugin.js";

/** Runs a verb of a plugin as `coppice` does, without a configuration. @returns the exit code. @throws what it throws */
export async function runVerb(
  plugin: Plugin,
  [verb = "", action = "", ...args]: readonly string[],
  context: Omit<VerbContext<unknown>, "exit">,
): Promise<number> {
  let code = 0;
  const command = new Command().exitOverride().configureOutput({ writeErr: () => {} });
  plugin.verbs[verb]?.[action]?.(command, { ...context, exit: (given) => (code = given) });
  await command.parseAsync(args, { from: "user" });
  return code;
}
