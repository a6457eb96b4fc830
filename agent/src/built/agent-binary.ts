import { accessSync, constants, existsSync, readFileSync, realpathSync } from "node:fs";
import { dirname, join } from "node:path";

/**
 * Path of the agent program: `COPPICE_AGENT` (or `none`), else the one built in this checkout, or in that of the program
 * that runs: the server's, for a copy of this package that a plugin brings. Undefined without an executable one.
 */
export function agentBinary(): string | undefined {
  const chosen = process.env["COPPICE_AGENT"];
  if (chosen === "none") return undefined;
  try {
    const path = chosen || builtFile("coppice-agent");
    accessSync(path, constants.X_OK);
    return path;
  } catch {
    return undefined;
  }
}

/** Path of a file that set-up built in a checkout. @throws Error when set-up has not run. */
export function builtFile(name: string): string {
  const own = toolchainOf(import.meta.filename, 4);
  const [, program = ""] = process.argv;
  // The server's program is `core/bin/coppice.mjs`.
  const toolchain = existsSync(own) || program === "" ? own : toolchainOf(realpathSync(program), 3);
  return join(toolchain, readFileSync(join(toolchain, "current"), "utf8").trim(), name);
}

/** @param depth of the file below the root of its checkout. */
function toolchainOf(file: string, depth: number): string {
  let root = file;
  for (let up = 0; up < depth; up += 1) root = dirname(root);
  return join(root, ".toolchain", "agent");
}
