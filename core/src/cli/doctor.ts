import { readConfig } from "../config/read.js";
import { examine } from "../boot/examine.js";
import { failures, formatFinding, type NamedFinding } from "../observe/finding.js";
import { BootError } from "../kernel/errors.js";
import { printLine } from "./terminal.js";

/**
 * Prints a line for each requirement of a configuration on this host, with the remedy, or all in JSON; exit code 1 for a
 * failure.
 */
export async function doctor(
  file: string,
  { json }: { readonly json?: true | undefined } = {},
): Promise<number> {
  const findings = await findingsOn(file);
  const count = (severity: NamedFinding["severity"]): number =>
    findings.filter((finding) => finding.severity === severity).length;
  if (json) printLine(JSON.stringify(findings));
  else {
    for (const finding of findings) printLine(formatFinding(finding));
    printLine(`${count("ok")} ok, ${count("warn")} warn, ${count("fail")} FAIL`);
  }
  return count("fail") === 0 ? 0 : 1;
}

async function findingsOn(file: string): Promise<readonly NamedFinding[]> {
  try {
    return await examine({ config: readConfig(file, process.env) });
  } catch (error) {
    if (!(error instanceof BootError)) throw error;
    return failures("configuration", error);
  }
}
