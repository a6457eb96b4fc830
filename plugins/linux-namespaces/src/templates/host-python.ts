import type { Launcher } from "../launcher/launcher.js";

/** An interpreter of this host, by what of the file system it needs. */
export interface HostPython {
  /** Two numbers: `3.12`. */
  readonly version: string;
  readonly isVenv: boolean;
  /** Where the interpreter itself and its standard library are. */
  readonly basePrefix: string;
  /** Directory of the packages that it was given. */
  readonly packages: string;
}

const QUESTION = `
import json, os, sys, sysconfig
import ipykernel
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "isVenv": sys.prefix != sys.base_prefix,
    "basePrefix": os.path.realpath(sys.base_prefix),
    "packages": os.path.realpath(sysconfig.get_path("purelib")),
}))`;

/** Asks an interpreter about itself. @throws Error when it cannot run or has no ipykernel. */
export async function askPython(interpreter: string, launcher: Launcher): Promise<HostPython> {
  const { code, output } = await launcher.run([interpreter, "-I", "-c", QUESTION]);
  const answer = output.trim().split("\n").at(-1) ?? "";
  if (code !== 0) throw new Error(answer === "" ? `it ended with exit code ${code}` : answer);
  return JSON.parse(answer) as HostPython;
}
