import { readConfig } from "../config/read.js";
import { configure } from "../configure.js";
import { configArgument } from "./config-argument.js";

/** Checks a configuration and that its plugins load, without starting anything. */
export async function check(args: readonly string[]): Promise<number> {
  const file = configArgument(args);
  const { plugins } = await configure(readConfig(file, process.env));
  process.stdout.write(`${file} is fine: ${plugins.length} plugins\n`);
  return 0;
}
