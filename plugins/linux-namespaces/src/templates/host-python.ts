import { z } from "zod";
import type { Launcher } from "../launcher/launcher.js";

const hostPython = z
  .object({
    /** Two numbers: `3.12`. */
    version: z.string().regex(/^\d+\.\d+$/),
    isVenv: z.boolean(),
    /** Directory of the interpreter itself and its standard library. */
    basePrefix: z.string().startsWith("/"),
    packages: z.string().startsWith("/"),
  })
  .readonly();

export type HostPython = z.infer<typeof hostPython>;

const QUESTION = `
import json, os, sys, sysconfig
import ipykernel
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "isVenv": sys.prefix != sys.base_prefix,
    "basePrefix": os.path.realpath(sys.base_prefix),
    "packages": os.path.realpath(sysconfig.get_path("purelib")),
}))`;

/** Asks an interpreter for its directories. @throws Error when it cannot run or has no ipykernel. */
export async function inspectPython(interpreter: string, launcher: Launcher): Promise<HostPython> {
  const { code, output } = await launcher.run([interpreter, "-I", "-c", QUESTION]);
  const answer = output.trim().split("\n").at(-1) ?? "";
  if (code !== 0) throw new Error(answer === "" ? `it ended with exit code ${code}` : answer);
  return hostPython.parse(JSON.parse(answer));
}
