import { z } from "zod";
import type { ConfigSource } from "../config/read.js";
import { serverConfig, type ServerConfig } from "./server-schema.js";
import { didYouMean } from "../kernel/did-you-mean.js";
import { BootError, type BootProblem, messageOf } from "../kernel/errors.js";
import { REASONS } from "../kernel/reasons.js";
import { orderPlugins } from "../kernel/order.js";
import { isPlugin, type Plugin, type Resolved } from "../plugin/plugin.js";
import { existsSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, isAbsolute, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { Listeners, Targets } from "../http/surfaces/targets.js";
import { Peers } from "../http/peers/peers.js";
import { Clock } from "../kernel/clock.js";
import { Tenants } from "../bounds/tenants.js";
import { Greeting } from "../observe/greeting.js";
import { AddressLeases } from "../sandbox/contract/address-leases.js";
import { Backends } from "../sandbox/contract/backend.js";
import { Sandboxes, Placements } from "../sandbox/life/sandboxes.js";
import { Startups } from "../sandbox/life/startups.js";
import { Admissions } from "../sandbox/model/admissions.js";
import { SharedRecords, SharedTemplates } from "../sandbox/model/shared.js";
import { SandboxEvents } from "../sandbox/model/sandbox-event.js";
import { Snapshots } from "../sandbox/model/snapshots.js";
import { TenantRecords } from "../sandbox/model/tenant-records.js";
import { Volumes } from "../sandbox/model/volumes.js";
import { Templates } from "../sandbox/templates/templates.js";
import { WarmUps } from "../sandbox/warm/warm-ups.js";

const TOKENS = {
  sandboxes: Sandboxes,
  snapshots: Snapshots,
  events: SandboxEvents,
  templates: Templates,
  volumes: Volumes,
  backends: Backends,
  leases: AddressLeases,
  warmUps: WarmUps,
  startups: Startups,
  placements: Placements,
  sharedRecords: SharedRecords,
  tenantRecords: TenantRecords,
  sharedTemplates: SharedTemplates,
  admissions: Admissions,
  tenants: Tenants,
  clock: Clock,
  targets: Targets,
  listeners: Listeners,
  peers: Peers,
  greeting: Greeting,
} as const;

/** Tokens that a plugin may require without another plugin that provides them. */
const BUILT_IN: ReadonlySet<symbol> = new Set<symbol>(Object.values(TOKENS));

export function builtInServices(services: Resolved<typeof TOKENS>): Map<symbol, unknown> {
  const names = Object.keys(TOKENS) as (keyof typeof TOKENS)[];
  return new Map<symbol, unknown>(names.map((name) => [TOKENS[name], services[name]]));
}

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

/** Folders in which backends keep sandboxes, by the setting that names them: `directory` of a plugin. */
export function foldersOfPlugins({ plugins }: Configuration): ReadonlyMap<string, string> {
  return new Map(
    plugins.flatMap(({ key, settings }) => {
      const { directory } = (settings ?? {}) as { readonly directory?: unknown };
      return typeof directory === "string" ? [[`${key}.directory`, resolve(directory)]] : [];
    }),
  );
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
    for (const reason of Object.keys(plugin.reasons ?? {})) {
      const owner = plugins.find((other) => Object.hasOwn(other.plugin.reasons ?? {}, reason))?.key;
      if (Object.hasOwn(REASONS, reason))
        note(["plugins", key], `plugin '${key}' has the reason '${reason}', which is core's`);
      else if (owner !== undefined && twin === undefined)
        note(["plugins", key], `plugins '${owner}' and '${key}' both have the reason '${reason}'`);
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

/** Parts of a JSON Schema that lead to the keys of an object. */
interface SchemaNode {
  readonly properties?: Readonly<Record<string, SchemaNode>>;
  readonly additionalProperties?: SchemaNode | false;
  readonly items?: SchemaNode;
  readonly anyOf?: readonly SchemaNode[];
  readonly oneOf?: readonly SchemaNode[];
  readonly allOf?: readonly SchemaNode[];
}

/** The keys of the object at a path of a schema; undefined for a plugin with zod 3. */
function knownKeys(schema: z.ZodType, path: readonly PropertyKey[]): readonly string[] {
  if (!("_zod" in schema)) return [];
  const root = z.toJSONSchema(schema, { io: "input", unrepresentable: "any" }) as SchemaNode;
  let nodes = alternatives(root);
  for (const key of path) {
    nodes = nodes
      .map(({ properties, additionalProperties, items }) =>
        typeof key === "number" ? items : (properties?.[String(key)] ?? additionalProperties),
      )
      .flatMap((node) => (node ? alternatives(node) : []));
  }
  return nodes.flatMap(({ properties = {} }) => Object.keys(properties));
}

function alternatives(node: SchemaNode): readonly SchemaNode[] {
  return [node, ...[node.anyOf, node.oneOf, node.allOf].flatMap((some = []) => some.flatMap(alternatives))];
}

const PREFIX = "@coppice/plugin-";

/**
 * Imports the plugin of a configuration key: `files` is `@coppice/plugin-files`, `./x.js` a file beside the
 * configuration, anything else with a slash a package.
 * @param directory of the configuration: packages installed there are found too.
 * @returns the module's default export, unchecked.
 * @throws Error with the name and the reason why it could not be loaded.
 */
async function loadPlugin(key: string, directory: string): Promise<unknown> {
  try {
    const module = (await import(locatePlugin(key, directory))) as { readonly default?: unknown };
    return module.default;
  } catch (error) {
    const place = isPath(key) ? resolve(directory, key) : specifierOf(key);
    const text = `cannot load plugin '${key}' (${place}): ${messageOf(error)}`;
    const meant = key.includes("/") ? "" : didYouMean(key, installedPlugins(directory));
    throw new Error(`${text}${meant}`, { cause: error });
  }
}

const isPath = (key: string): boolean => key.startsWith("./") || key.startsWith("../") || isAbsolute(key);
const specifierOf = (key: string): string => (key.includes("/") ? key : `${PREFIX}${key}`);

/** What to import for the plugin of a configuration key: a file's URL, or a specifier that nothing was found for. */
function locatePlugin(key: string, directory: string): string {
  return isPath(key)
    ? pathToFileURL(resolve(directory, key)).href
    : locatePackage(specifierOf(key), directory);
}

/** Location of a package: in a folder, else beside core; the bare specifier when neither finds it. */
export function locatePackage(specifier: string, directory: string): string {
  for (const from of [join(directory, "coppice.yaml"), import.meta.filename]) {
    try {
      return pathToFileURL(createRequire(from).resolve(specifier)).href;
    } catch {
      // Not installed here: the import that follows reports the reason.
    }
  }
  return specifier;
}

/** Names of the project's plugins that a configuration may have. */
function installedPlugins(directory: string): readonly string[] {
  const folders = [join(directory, "coppice.yaml"), import.meta.filename].flatMap(
    (from) => createRequire(from).resolve.paths(PREFIX) ?? [],
  );
  return folders.flatMap((folder) => {
    const scope = join(folder, dirname(PREFIX));
    if (!existsSync(scope)) return [];
    const names = readdirSync(scope).map((name) => `${dirname(PREFIX)}/${name}`);
    return names.filter((name) => name.startsWith(PREFIX)).map((name) => name.slice(PREFIX.length));
  });
}

/** The entry files of the plugins of a configuration that are not the project's own, as far as they are found. */
export function entriesOfOthers(source: ConfigSource): readonly string[] {
  return Object.keys(pluginSettings(source.values))
    .filter((key) => key.includes("/"))
    .map((key) => locatePlugin(key, pluginDirectory(source.file)))
    .filter((place) => place.startsWith("file:"))
    .map((place) => fileURLToPath(place));
}

function pluginDirectory(configFile: string): string {
  return dirname(resolve(configFile));
}
