import { parseArgs } from "node:util";
import { UsageError } from "./usage-error.js";

/** The configuration file that a verb was given. @throws UsageError, or the error of parseArgs for an option. */
export function configArgument(args: readonly string[]): string {
  const { positionals } = parseArgs({ args: [...args], allowPositionals: true });
  const [file, ...rest] = positionals;
  if (file === undefined || rest.length > 0) throw new UsageError("name one configuration file");
  return file;
}
