import { inspect } from "../boot/boot.js";
import { readConfig } from "../config/read.js";
import { configure } from "../boot/configure.js";
import { BootError, type BootProblem } from "../kernel/errors.js";
import { createLogger } from "../observe/logger.js";
import { unknownNames } from "../sandbox/backends/choose-backends.js";
import { EXIT_CONFIG } from "./arguments.js";
import { printLine } from "./terminal.js";

/**
 * Checks a configuration and that its plugins fit together. Starts nothing and does not examine the host.
 * @throws BootError with all problems; with `json` they are printed.
 */
export async function check(
  file: string,
  { json }: { readonly json?: true | undefined } = {},
): Promise<number> {
  try {
    const plugins = await fittingPlugins(file);
    printLine(json ? JSON.stringify({ plugins, problems: [] }) : `${file} is fine: ${plugins} plugins`);
    return 0;
  } catch (error) {
    if (!json || !(error instanceof BootError)) throw error;
    printLine(JSON.stringify({ problems: error.problems }));
    return EXIT_CONFIG;
  }
}

/** @returns how many plugins a configuration without problems has. @throws BootError with all problems */
async function fittingPlugins(file: string): Promise<number> {
  const config = readConfig(file, process.env);
  const configuration = await configure(config);
  const problems: BootProblem[] = [];
  await inspect({ config, configuration, log: createLogger("silent") }, async (inspected) => {
    problems.push(...inspected.problems);
    for (const { path, message } of unknownNames(inspected, configuration.server.sandboxes))
      problems.push({ message, at: config.at(path) });
  });
  if (problems.length > 0) throw new BootError(problems);
  return configuration.plugins.length;
}
