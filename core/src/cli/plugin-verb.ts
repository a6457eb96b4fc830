import { join, resolve } from "node:path";
import { readConfig } from "../config/read.js";
import { configure, type EnabledPlugin } from "../boot/configure.js";
import type { ServerConfig } from "../boot/server-schema.js";
import type { Verbs } from "../plugin/plugin.js";
import { systemClock } from "../kernel/clock.js";
import { didYouMean } from "../kernel/did-you-mean.js";
import { SandboxError, BootError } from "../kernel/errors.js";
import { printFailure, printTable, visibleText } from "./terminal.js";
import { makeDirectory } from "../kernel/files.js";
import { createLogger } from "../observe/logger.js";
import { ApiFailure, HttpServerClient } from "./server-client.js";
import { isUsageError, UsageError } from "./arguments.js";
import { type InspectOptions, inspect } from "../boot/boot.js";
import type { Backends } from "../sandbox/contract/backend.js";

/**
 * Runs `coppice <verb> <action> <config.yaml> [options]` of a plugin that the configuration enables.
 * @returns the exit code. @throws UsageError
 */
export async function pluginVerb(verb: string, [name = "", file = "", ...args]: readonly string[]) {
  const config = readConfig(file, process.env);
  const configuration = await configure(config);
  const { server, plugins } = configuration;
  const owner = plugins.find(({ plugin }) => Object.hasOwn(plugin.verbs, verb));
  if (owner === undefined) throw noSuchVerb(verb, file, plugins);
  const { plugin, settings } = owner;
  const actions = plugin.verbs[verb] ?? {};
  const action = Object.hasOwn(actions, name) ? actions[name] : undefined;
  const usage = usageText(verb, action === undefined ? actions : { [name]: action });
  if (action === undefined)
    throw new UsageError(`'${verb}' has no '${name}'${didYouMean(name, Object.keys(actions))}`, usage);
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
      whileStopped: async (use) => whileStopped({ config, configuration, log: createLogger("silent") }, use),
      server: (said) => new HttpServerClient(said, process.env, addressOf(server.listeners)),
      print: (line) => void process.stdout.write(`${process.stdout.isTTY ? visibleText(line) : line}\n`),
      printTable,
    });
  } catch (error) {
    if (isUsageError(error)) throw new UsageError(error.message, usage);
    if (!(error instanceof SandboxError || error instanceof ApiFailure)) throw error;
    printFailure(error.message);
    return 1;
  }
}

/**
 * Usage lines of the actions that plugins of a configuration add: all, those of a verb, or one action.
 * @throws BootError for a wrong configuration, UsageError when no plugin has that verb.
 */
export async function pluginVerbUsage(
  file: string,
  [only, action = ""]: readonly string[],
): Promise<readonly string[]> {
  const { plugins } = await configure(readConfig(file, process.env));
  const verbs = plugins
    .flatMap(({ plugin }) => Object.entries(plugin.verbs))
    .filter(([verb]) => only === undefined || verb === only);
  if (only !== undefined && verbs.length === 0) throw noSuchVerb(only, file, plugins);
  return verbs.flatMap(([verb, actions]) => {
    const one = Object.hasOwn(actions, action) ? actions[action] : undefined;
    return usageOf(verb, one === undefined ? actions : { [action]: one });
  });
}

/** Where a server of this machine has its control plane. */
function addressOf({ api }: ServerConfig["listeners"]): string | undefined {
  if (api === undefined) return undefined;
  const host = ["0.0.0.0", "::"].includes(api.host) ? "127.0.0.1" : api.host;
  return `${api.tls === undefined ? "http" : "https"}://${host.includes(":") ? `[${host}]` : host}:${api.port}`;
}

function noSuchVerb(verb: string, file: string, plugins: readonly EnabledPlugin[]): UsageError {
  const known = plugins.flatMap(({ plugin }) => Object.keys(plugin.verbs));
  const suggestion = didYouMean(verb, known);
  return new UsageError(`neither coppice nor a plugin of ${file} has the verb '${verb}'${suggestion}`);
}

function usageText(verb: string, actions: Verbs<unknown>[string]): string {
  return `usage:\n${usageOf(verb, actions).join("\n")}\n`;
}

function usageOf(verb: string, actions: Verbs<unknown>[string]): readonly string[] {
  return Object.entries(actions).map(([action, { usage }]) =>
    `  coppice ${verb} ${action} <config.yaml> ${usage}`.trimEnd(),
  );
}

/**
 * Sets a configuration up without starting it, and passes its backends to `use`. Meanwhile no server can start on its
 * data directory.
 * @throws BootError when it cannot be set up or a server runs on that directory, or what `use` throws.
 */
async function whileStopped<T>(options: InspectOptions, use: (backends: Backends) => Promise<T>): Promise<T> {
  const [used] = await inspect(options, async ({ backends, ledger, problems }) => {
    if (problems.length > 0) throw new BootError(problems);
    await ledger.open();
    try {
      // Thrown only after the undoing, which would make a BootError of it.
      return await Promise.allSettled([use(backends)]);
    } finally {
      await ledger.close();
    }
  });
  if (used.status === "rejected") throw used.reason;
  return used.value;
}
