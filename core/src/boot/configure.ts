import type { z } from "zod";
import { BUILT_IN } from "./built-in-services.js";
import { knownKeys } from "../config/known-keys.js";
import type { ConfigSource } from "../config/read.js";
import { serverConfig, type ServerConfig } from "./server-schema.js";
import { didYouMean } from "../kernel/did-you-mean.js";
import { BootError, type BootProblem, messageOf } from "../kernel/errors.js";
import { loadPlugin, pluginDirectory } from "../kernel/loader.js";
import { orderPlugins } from "../kernel/order.js";
import { isPlugin, type Plugin } from "../plugin/plugin.js";

export interface EnabledPlugin {
  readonly key: string;
  readonly plugin: Plugin;
  readonly settings: unknown;
}

export interface Configuration {
  readonly server: ServerConfig;
  /** In the order in which they can be set up. */
  readonly plugins: readonly EnabledPlugin[];
}

/**
 * Checks a configuration and loads its plugins, without setting anything up.
 * @param atHand plugins that need no loading, by their key in the configuration.
 * @throws BootError with every problem found, each at its line.
 */
export async function configure(
  source: ConfigSource,
  atHand: ReadonlyMap<string, Plugin> = new Map(),
): Promise<Configuration> {
  const problems: BootProblem[] = [];
  const note = (path: readonly PropertyKey[], message: string): void => {
    problems.push({ message, at: source.at(path) });
  };
  const parse = <C extends z.ZodType>(
    path: readonly PropertyKey[],
    schema: C,
    values: unknown,
  ): z.infer<C> | undefined => {
    const { data, error } = schema.safeParse(values);
    for (const issue of error?.issues ?? []) {
      if (issue.code !== "unrecognized_keys") note([...path, ...issue.path], describe(path, issue));
      else
        for (const key of issue.keys) {
          const suggestion = didYouMean(key, knownKeys(schema, issue.path));
          note([...path, ...issue.path, key], `unknown key '${key}'${suggestion}`);
        }
    }
    return data;
  };

  const server = parse([], serverConfig, source.values);

  for (const [name, other] of sharedPorts(server)) {
    note(["listeners", name, "port"], `listeners '${other}' and '${name}' have the same port`);
  }

  const plugins: EnabledPlugin[] = [];
  for (const [key, settings] of Object.entries(pluginSettings(source.values))) {
    let plugin: Plugin;
    try {
      plugin = atHand.get(key) ?? (await requirePlugin(key, pluginDirectory(source.file)));
    } catch (error) {
      note(["plugins", key], messageOf(error));
      continue;
    }
    const twin = plugins.find((other) => other.plugin.name === plugin.name);
    if (twin !== undefined)
      note(["plugins", key], `'${twin.key}' and '${key}' are both a plugin named '${plugin.name}'`);
    for (const verb of Object.keys(plugin.verbs)) {
      const owner = plugins.find((other) => Object.hasOwn(other.plugin.verbs, verb));
      if (owner !== undefined && twin === undefined)
        note(["plugins", key], `plugins '${owner.key}' and '${key}' both have the verb '${verb}'`);
    }
    plugins.push({ key, plugin, settings: parse(["plugins", key], plugin.config, settings ?? {}) });
  }

  const order = orderPlugins(
    plugins.map(({ plugin }) => plugin),
    BUILT_IN,
  );
  const byName = new Map(plugins.map((entry) => [entry.plugin.name, entry]));
  for (const { plugin, message } of order.problems)
    note(["plugins", byName.get(plugin.name)?.key ?? plugin.name], message);

  if (problems.length > 0 || server === undefined) throw new BootError(problems);
  return {
    server,
    plugins: order.ordered.flatMap(({ name }) => byName.get(name) ?? []),
  };
}

/** Loads the plugin of a key, as `loadPlugin`. @throws Error, also for what is no plugin. */
export async function requirePlugin(key: string, directory: string): Promise<Plugin> {
  const plugin = await loadPlugin(key, directory);
  if (isPlugin(plugin)) return plugin;
  throw new Error(`'${key}' is no plugin: its default export was not made by definePlugin`);
}

/** Pairs of listeners with the same address, of which the second cannot be opened. */
function sharedPorts(server: ServerConfig | undefined): readonly (readonly [string, string])[] {
  const listeners = Object.entries(server?.listeners ?? {});
  const isEverything = (host: string): boolean => host === "0.0.0.0" || host === "::";
  return listeners.flatMap(([name, { host, port }], index) =>
    listeners
      .slice(0, index)
      .filter(([, other]) => port !== 0 && other.port === port)
      .filter(([, other]) => other.host === host || isEverything(other.host) || isEverything(host))
      .map(([other]) => [name, other] as const),
  );
}

function pluginSettings(values: unknown): Record<string, unknown> {
  const plugins = (values as { readonly plugins?: unknown } | null)?.plugins;
  return typeof plugins === "object" && plugins !== null ? (plugins as Record<string, unknown>) : {};
}

function describe(path: readonly PropertyKey[], issue: z.core.$ZodIssue): string {
  const where = [...path, ...issue.path].map(String).join(".");
  return where === "" ? issue.message : `${where}: ${issue.message}`;
}
