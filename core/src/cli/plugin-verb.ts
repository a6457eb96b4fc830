import { mkdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { readConfig } from "../config/read.js";
import { configure } from "../configure.js";
import { systemClock } from "../kernel/clock.js";
import { BootError, SandboxError } from "../kernel/errors.js";
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
  const usage = Object.entries(actions).map(([each, { usage: options }]) =>
    `  coppice ${verb} ${each} <config.yaml> ${options}`.trimEnd(),
  );
  const refuse = (reason: string): number => {
    process.stderr.write(`coppice: ${reason}\nusage:\n${usage.join("\n")}\n`);
    return EXIT_USAGE;
  };
  if (action === undefined) return refuse(`'${verb}' has no '${name}'`);
  try {
    return await action.run({
      config: settings,
      args,
      clock: systemClock,
      dataDir: () => {
        const directory = join(resolve(server.dataDir), plugin.name);
        mkdirSync(directory, { recursive: true, mode: 0o700 });
        return directory;
      },
      print: (line) => void process.stdout.write(`${line}\n`),
    });
  } catch (error) {
    if (isBadUsage(error)) return refuse(error.message);
    if (!(error instanceof SandboxError)) throw error;
    process.stderr.write(`coppice: ${error.message}\n`);
    return 1;
  }
}
