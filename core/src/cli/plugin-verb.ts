import type { Command } from "@commander-js/extra-typings";
import { join, resolve } from "node:path";
import { readConfig } from "../config/read.js";
import { configure } from "../boot/configure.js";
import type { ServerConfig } from "../boot/server-schema.js";
import { systemClock } from "../kernel/clock.js";
import { BootError } from "../kernel/errors.js";
import { takesActions } from "./program.js";
import { printLine, printTable } from "./terminal.js";
import { makeDirectory } from "../kernel/files.js";
import { createLogger } from "../observe/logger.js";
import { HttpServerClient } from "./server-client.js";
import { type InspectOptions, inspect } from "../boot/boot.js";
import type { Backends } from "../sandbox/contract/backend.js";

/**
 * Adds the verbs of a configuration's plugins to the command line.
 * @throws BootError for a wrong configuration, or a verb that it has already
 */
export async function addPluginVerbs(program: Command, file: string): Promise<void> {
  const config = readConfig(file, process.env);
  const configuration = await configure(config);
  const { server, plugins } = configuration;
  for (const { plugin, settings } of plugins) {
    const context = {
      config: settings,
      exit: (code: number) => void (process.exitCode = code),
      clock: systemClock,
      dataDir: () => {
        const directory = join(resolve(server.dataDir), plugin.name);
        makeDirectory(directory, 0o700);
        return directory;
      },
      whileStopped: async <T>(use: (backends: Backends) => Promise<T>) =>
        whileStopped({ config, configuration, log: createLogger("silent") }, use),
      server: (said: { readonly url?: string | undefined }) =>
        new HttpServerClient(said, process.env, addressOf(server.listeners)),
      print: (line: string) => printLine(line),
      printTable,
    };
    for (const [verb, actions] of Object.entries(plugin.verbs)) {
      const existing = program.commands.find((command) => command.name() === verb);
      if (existing !== undefined && !takesActions(existing))
        throw new BootError([
          { message: `plugin '${plugin.name}' has the verb '${verb}', which coppice has` },
        ]);
      const group = (existing ??
        program
          .command(verb)
          .helpGroup("Plugins:")
          .description(`verbs of the plugin ${plugin.name}`)) as Command;
      for (const [name, action] of Object.entries(actions)) {
        const command = group.command(name);
        action(command, context);
        command.usage(`<config.yaml> ${command.usage()}`);
      }
    }
  }
}

/** Where a server of this machine has its control plane. */
function addressOf({ api }: ServerConfig["listeners"]): string | undefined {
  if (api === undefined) return undefined;
  const host = ["0.0.0.0", "::"].includes(api.host) ? "127.0.0.1" : api.host;
  return `${api.tls === undefined ? "http" : "https"}://${host.includes(":") ? `[${host}]` : host}:${api.port}`;
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
