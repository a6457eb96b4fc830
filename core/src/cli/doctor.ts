import { readConfig } from "../config/read.js";
import { examine } from "../boot/examine.js";
import { failures, formatFinding, type NamedFinding } from "../observe/finding.js";
import { BootError } from "../kernel/errors.js";

/** Prints a line for each requirement of a configuration on this host, with the remedy; exit code 1 for a failure. */
export async function doctor(file: string): Promise<number> {
  const findings = await findingsOn(file);
  const count = (severity: NamedFinding["severity"]): number =>
    findings.filter((finding) => finding.severity === severity).length;
  for (const finding of findings) process.stdout.write(`${formatFinding(finding)}\n`);
  process.stdout.write(`${count("ok")} ok, ${count("warn")} warn, ${count("fail")} FAIL\n`);
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
