import { existsSync } from "node:fs";
import { join } from "node:path";

/** Reason to skip tests that need programs of the host; false when it has them all. */
export function missingPrograms(...names: readonly string[]): string | false {
  const directories = (process.env["PATH"] ?? "").split(":");
  const missing = names.filter((name) => !directories.some((directory) => existsSync(join(directory, name))));
  return missing.length > 0 && `this host has no ${missing.join(" and no ")}`;
}
