import { inspect } from "../boot/boot.js";
import { readConfig } from "../config/read.js";
import { configure } from "../boot/configure.js";
import { BootError, type BootProblem } from "../kernel/errors.js";
import { createLogger } from "../observe/logger.js";
import { unknownNames } from "../sandbox/backends/choose-backends.js";

/** Checks a configuration and that its plugins fit together. Starts nothing and does not examine the host. */
export async function check(file: string): Promise<number> {
  const config = readConfig(file, process.env);
  const configuration = await configure(config);
  const problems: BootProblem[] = [];
  await inspect({ config, configuration, log: createLogger("silent") }, async (inspected) => {
    problems.push(...inspected.problems);
    for (const { path, message } of unknownNames(inspected, configuration.server.sandboxes))
      problems.push({ message, at: config.at(path) });
  });
  if (problems.length > 0) throw new BootError(problems);
  process.stdout.write(`${file} is fine: ${configuration.plugins.length} plugins\n`);
  return 0;
}
