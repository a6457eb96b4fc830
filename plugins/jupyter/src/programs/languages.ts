import { type Logger, messageOf, SandboxError } from "@coppice/core";
import type { Sandbox } from "@coppice/core/backend";
import type { InstalledKernel, KernelProgram } from "./kernel-program.js";
import { posix } from "node:path";
import { z } from "zod";
import { REASONS } from "../reasons.js";

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
async function installedKernels(sandbox: Sandbox, log: Logger): Promise<readonly InstalledKernel[]> {
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

export const DEFAULT_LANGUAGE = "python";

const ALIASES: ReadonlyMap<string, string> = new Map([
  ["", DEFAULT_LANGUAGE],
  ["python3", "python"],
  ["js", "javascript"],
  ["ts", "typescript"],
]);

/** Normalizes a client's name of a language: `" JS "` is `javascript`. */
export function languageNamed(asked: string | undefined): string {
  const name = (asked ?? "").trim().toLowerCase();
  return ALIASES.get(name) ?? name;
}

export class Languages {
  readonly #own: ReadonlyMap<string, KernelProgram>;
  readonly #log: Logger;

  /** @param own the kernels of this plugin by language. */
  constructor(own: ReadonlyMap<string, KernelProgram>, log: Logger) {
    this.#own = own;
    this.#log = log;
  }

  /** The languages of every sandbox. */
  get own(): readonly string[] {
    return [...this.#own.keys()];
  }

  /** The kernels installed in a sandbox, without those that ours replace. */
  async installed(sandbox: Sandbox): Promise<readonly InstalledKernel[]> {
    const installed = await installedKernels(sandbox, this.#log);
    return installed.filter(({ name }) => !this.#own.has(languageNamed(name)));
  }

  /** By the name of a language, or of an installed kernel. @throws UnknownLanguageError */
  async programFor(language: string, sandbox: Sandbox): Promise<KernelProgram | InstalledKernel> {
    const own = this.#own.get(language);
    if (own !== undefined) return own;
    const installed = await this.installed(sandbox);
    const program =
      installed.find(({ name }) => name.toLowerCase() === language) ??
      installed.find((kernel) => kernel.language.toLowerCase() === language);
    if (program !== undefined) return program;
    throw new UnknownLanguageError(language, [...this.own, ...installed.map(({ name }) => name)]);
  }
}

/** A language without a kernel. The message is JSON, as that of E2B's server. */
export class UnknownLanguageError extends SandboxError {
  constructor(language: string, available: readonly string[]) {
    const shown = language.slice(0, 100);
    const message = `The '${shown}' kernel is not available. Available languages: ${available.join(", ")}.`;
    super(
      REASONS.template_has_no_kernel,
      `{"message": ${JSON.stringify(message)}, "short_message": ${JSON.stringify(`${shown} not found`)}}`,
    );
  }
}
