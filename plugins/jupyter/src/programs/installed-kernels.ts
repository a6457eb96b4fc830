import { posix } from "node:path";
import { messageOf, type Logger, type Sandbox } from "@coppice/core";
import { z } from "zod";
import type { InstalledKernel } from "./kernel-program.js";

/** The relevant fields of a `kernel.json`. */
const kernelSpecFile = z.object({
  argv: z.array(z.string()).min(1),
  display_name: z.string().max(200).optional(),
  language: z.string().min(1).max(100),
  env: z.record(z.string(), z.string()).default({}),
  interrupt_mode: z.enum(["signal", "message"]).default("signal"),
});

const SYSTEM_DIRECTORIES = ["/usr/local/share/jupyter/kernels", "/usr/share/jupyter/kernels"];
const NAME = /^[A-Za-z0-9._-]{1,100}$/;
const MAX_SPECS = 100;
const MAX_SPEC_BYTES = 64 * 1024;

/** The `kernelspec`s of a sandbox; the user's override the system's, and unreadable ones are left out. */
export async function installedKernels(sandbox: Sandbox, log: Logger): Promise<readonly InstalledKernel[]> {
  const { home } = await sandbox.user();
  const found = new Map<string, InstalledKernel>();
  for (const directory of [posix.join(home, ".local/share/jupyter/kernels"), ...SYSTEM_DIRECTORIES]) {
    for (const name of await namesIn(sandbox, directory)) {
      if (found.has(name) || found.size >= MAX_SPECS) continue;
      try {
        found.set(name, await readSpec(sandbox, posix.join(directory, name), name));
      } catch (error) {
        log.debug({ kernel: name, reason: messageOf(error) }, "an installed kernel cannot be used");
      }
    }
  }
  return [...found.values()];
}

async function namesIn({ files }: Sandbox, directory: string): Promise<readonly string[]> {
  const names: string[] = [];
  try {
    for await (const { name } of files.list(directory, 1)) {
      if (NAME.test(name)) names.push(name);
      if (names.length >= MAX_SPECS) break;
    }
  } catch {
    // Missing, or not a directory: nothing is installed here.
  }
  return names;
}

async function readSpec({ files }: Sandbox, directory: string, name: string): Promise<InstalledKernel> {
  await using file = await files.read(posix.join(directory, "kernel.json"));
  if (file.info.sizeBytes > MAX_SPEC_BYTES) throw new Error("its kernel.json is too large");
  const content = Buffer.concat(await Array.fromAsync(file.content({ length: MAX_SPEC_BYTES })));
  const spec = kernelSpecFile.parse(JSON.parse(content.toString("utf8")));
  return {
    name,
    displayName: spec.display_name ?? name,
    language: spec.language,
    argv: spec.argv.map((word) => word.replaceAll("{resource_dir}", directory)),
    env: spec.env,
    interruptMode: spec.interrupt_mode,
  };
}
