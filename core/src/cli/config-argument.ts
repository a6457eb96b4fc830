import { BootError } from "../kernel/errors.js";

/** The configuration file that a verb was given. @throws BootError when it was not exactly one. */
export function configArgument(args: readonly string[]): string {
  const [file, ...rest] = args;
  if (file === undefined || rest.length > 0)
    throw new BootError([{ message: "name one configuration file" }]);
  return file;
}
