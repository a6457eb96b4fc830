import { createRequire } from "node:module";
import { dirname, isAbsolute, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { messageOf } from "./errors.js";

/**
 * Imports the plugin of a configuration key: `files` is `@coppice/plugin-files`, `./x.js` a file beside the
 * configuration, anything else with a slash a package.
 * @param directory of the configuration: packages installed there are found too.
 * @returns the module's default export, unchecked.
 * @throws Error with the name and the reason why it could not be loaded.
 */
export async function loadPlugin(key: string, directory: string): Promise<unknown> {
  const isPath = key.startsWith("./") || key.startsWith("../") || isAbsolute(key);
  const specifier = key.includes("/") ? key : `@coppice/plugin-${key}`;
  const target = isPath ? pathToFileURL(resolve(directory, key)).href : locate(specifier, directory);
  try {
    const module = (await import(target)) as { readonly default?: unknown };
    return module.default;
  } catch (error) {
    const place = isPath ? resolve(directory, key) : specifier;
    throw new Error(`cannot load plugin '${key}' (${place}): ${messageOf(error)}`, { cause: error });
  }
}

/** Location of a package: beside the configuration, else beside core; the bare specifier when neither finds it. */
function locate(specifier: string, directory: string): string {
  for (const from of [join(directory, "coppice.yaml"), import.meta.filename]) {
    try {
      return pathToFileURL(createRequire(from).resolve(specifier)).href;
    } catch {
      // Not installed here: the import that follows reports the reason.
    }
  }
  return specifier;
}

export function pluginDirectory(configFile: string): string {
  return dirname(resolve(configFile));
}
