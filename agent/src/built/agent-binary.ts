import { accessSync, constants, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const TOOLCHAIN = fileURLToPath(new URL("../../../.toolchain/agent", import.meta.url));

/**
 * Path of the agent program: `COPPICE_AGENT` (or `none`), else the one built in this checkout. Undefined without an
 * executable one.
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

/** Path of a file that set-up built in this checkout. @throws Error when set-up has not run. */
export function builtFile(name: string): string {
  return join(TOOLCHAIN, readFileSync(join(TOOLCHAIN, "current"), "utf8").trim(), name);
}
