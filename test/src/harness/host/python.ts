import { existsSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

/** Where set-up has noted which interpreter it found or made. */
const RECORD = fileURLToPath(new URL("../../../../.toolchain/python.json", import.meta.url));

/**
 * The interpreter with ipykernel, numpy, pandas and matplotlib: the one in `COPPICE_PYTHON`, which the scripts of the
 * project set, or else that of set-up.
 */
export const PYTHON = process.env["COPPICE_PYTHON"] ?? recorded() ?? "python3";

function recorded(): string | undefined {
  if (!existsSync(RECORD)) return undefined;
  return (JSON.parse(readFileSync(RECORD, "utf8")) as { readonly interpreter: string }).interpreter;
}
