import { join, resolve } from "node:path";
import { readConfig } from "../config/read.js";
import { configure } from "../configure.js";
import type { Verbs } from "../plugin.js";
import { systemClock } from "../kernel/clock.js";
import { BootError, SandboxError } from "../kernel/errors.js";
import { printTable } from "./print-table.js";
import { asksForHelp } from "./asks-for-help.js";
import { makeDirectory } from "../kernel/make-directory.js";
import { isBadUsage } from "./bad-usage.js";

/** sysexits.h: EX_USAGE. */
const EXIT_USAGE = 64;

/**
 * Runs `coppice <verb> <action> <config.yaml> [options]` of a plugin that the configuration enables.
 * @returns the exit code. @throws BootError when no plugin has that verb.
 */
export async function pluginVerb(verb: string, [name = "", file = "", ...args]: readonly string[]) {
  const { server, plugins } = await configure(readConfig(file, process.env));
  const owner = plugins.find(({ plugin }) => Object.hasOwn(plugin.verbs, verb));
  if (owner === undefined)
    throw new BootError([{ message: `neither coppice nor a plugin of ${file} has the verb '${verb}'` }]);
  const { plugin, settings } = owner;
  const actions = plugin.verbs[verb] ?? {};
  const action = Object.hasOwn(actions, name) ? actions[name] : undefined;
  const usage = usageOf(verb, actions);
  const refuse = (reason: string): number => {
    process.stderr.write(`coppice: ${reason}\nusage:\n${usage.join("\n")}\n`);
    return EXIT_USAGE;
  };
  if (action === undefined) return refuse(`'${verb}' has no '${name}'`);
  if (asksForHelp(args)) {
    process.stdout.write(`usage:\n${usageOf(verb, { [name]: action }).join("\n")}\n`);
    return 0;
  }
  try {
    return await action.run({
      config: settings,
      args,
      clock: systemClock,
      dataDir: () => {
        const directory = join(resolve(server.dataDir), plugin.name);
        makeDirectory(directory, 0o700);
        return directory;
      },
      print: (line) => void process.stdout.write(`${line}\n`),
      printTable,
    });
  } catch (error) {
    if (isBadUsage(error)) return refuse(error.message);
    if (!(error instanceof SandboxError)) throw error;
    process.stderr.write(`coppice: ${error.message}\n`);
    return 1;
  }
}

/** A line for each verb and action of the plugins of a configuration. @throws BootError for one that is wrong. */
export async function pluginVerbUsage(file: string): Promise<readonly string[]> {
  const { plugins } = await configure(readConfig(file, process.env));
  return plugins.flatMap(({ plugin }) =>
    Object.entries(plugin.verbs).flatMap(([verb, actions]) => usageOf(verb, actions)),
  );
}

function usageOf(verb: string, actions: Verbs<unknown>[string]): readonly string[] {
  return Object.entries(actions).map(([action, { usage }]) =>
    `  coppice ${verb} ${action} <config.yaml> ${usage}`.trimEnd(),
  );
}
