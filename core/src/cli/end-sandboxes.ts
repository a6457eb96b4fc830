import { boot } from "../boot/boot.js";
import { type ConfigSource, readConfig } from "../config/read.js";
import { createLogger } from "../observe/logger.js";

/**
 * Ends all sandboxes that a stopped server has kept, of every tenant: what is to be removed from a host must not leave any
 * behind. Exit code 1 when one could not be ended.
 */
export async function endSandboxes(file: string): Promise<number> {
  const log = createLogger("warn");
  // It adopts them, and stops.
  const server = await boot({ config: destroying(readConfig(file, process.env)), log });
  const failures = await server.stop();
  for (const { owner, error } of failures) log.error({ plugin: owner, err: error }, "stop went wrong");
  return failures.length === 0 ? 0 : 1;
}

/** Invalid values stay as they are, for `boot` to tell. */
function destroying(config: ConfigSource): ConfigSource {
  const values = config.values as { readonly sandboxes?: object };
  if (typeof values !== "object") return config;
  return { ...config, values: { ...values, sandboxes: { ...values.sandboxes, onShutdown: "destroy" } } };
}
