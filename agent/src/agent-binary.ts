import { accessSync, constants, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const TOOLCHAIN = fileURLToPath(new URL("../../.toolchain/agent", import.meta.url));

/**
 * The agent's program: `COPPICE_AGENT` (or `none`), else what set-up built in this checkout. Undefined where
 * there is none that can be run.
 */
export function agentBinary(): string | undefined {
  const chosen = process.env["COPPICE_AGENT"];
  if (chosen === "none") return undefined;
  try {
    const path =
      chosen || join(TOOLCHAIN, readFileSync(join(TOOLCHAIN, "current"), "utf8").trim(), "coppice-agent");
    accessSync(path, constants.X_OK);
    return path;
  } catch {
    return undefined;
  }
}
