import { execFile } from "node:child_process";
import { promisify } from "node:util";

const run = promisify(execFile);
const TIMEOUT_MS = 10_000;

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
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "isVenv": sys.prefix != sys.base_prefix,
    "basePrefix": os.path.realpath(sys.base_prefix),
    "packages": os.path.realpath(sysconfig.get_path("purelib")),
}))`;

/** Asks an interpreter about itself. @throws Error when it cannot run. */
export async function askPython(interpreter: string): Promise<HostPython> {
  // Isolated from the server's variables and the current directory: only what it finds by itself counts.
  const { stdout } = await run(interpreter, ["-I", "-c", QUESTION], {
    timeout: TIMEOUT_MS,
    env: { PATH: process.env["PATH"] },
  });
  return JSON.parse(stdout) as HostPython;
}
