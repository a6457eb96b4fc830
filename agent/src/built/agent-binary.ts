import { accessSync, constants, existsSync, readFileSync, realpathSync, close } from "node:fs";
import { dirname, join } from "node:path";
import { createRequire } from "node:module";

/**
 * Path of the agent program: `COPPICE_AGENT` (or `none`), else the one built in this checkout, or in that of the program
 * that runs: the server's, for a copy of this package that a plugin brings. Undefined without an executable one.
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

/** Path of a file that set-up built in a checkout. @throws Error when set-up has not run. */
function builtFile(name: string): string {
  const own = toolchainOf(import.meta.filename, 4);
  const [, program = ""] = process.argv;
  // The server's program is `core/bin/coppice.mjs`.
  const toolchain = existsSync(own) || program === "" ? own : toolchainOf(realpathSync(program), 3);
  return join(toolchain, readFileSync(join(toolchain, "current"), "utf8").trim(), name);
}

/** @param depth of the file below the root of its checkout. */
function toolchainOf(file: string, depth: number): string {
  let root = file;
  for (let up = 0; up < depth; up += 1) root = dirname(root);
  return join(root, ".toolchain", "agent");
}

/** The addon in `native/addon`. Its functions return minus an errno when they fail. */
interface Addon {
  openProcess(pid: number): number;
  take(process: number, descriptor: number): number;
  connect(socket: number, bufferBytes: number): number;
}

/** Descriptors of another process, which this one can take over. */
export class ProcessDescriptors {
  readonly #addon: Addon;
  readonly #process: number;

  private constructor(addon: Addon, process: number) {
    this.#addon = addon;
    this.#process = process;
  }

  /**
   * Refers to a process, and to no later one with its pid. Undefined without the addon, on other systems than Linux, or
   * when the process has ended. The caller makes sure that it is the process that was meant.
   */
  static open(pid: number): ProcessDescriptors | undefined {
    const addon = findAddon();
    const process = addon?.openProcess(pid) ?? -1;
    return addon === undefined || process < 0 ? undefined : new ProcessDescriptors(addon, process);
  }

  /**
   * Duplicates a descriptor: the open file itself, with its access and its position. The caller closes it. Undefined
   * when there is none, or this process may not trace that one.
   */
  take(descriptor: number): number | undefined {
    const taken = this.#addon.take(this.#process, descriptor);
    return taken < 0 ? undefined : taken;
  }

  close(): void {
    close(this.#process);
  }
}

/**
 * Makes two connected sockets, and sends one of them by a socket of another process. The caller closes the other one,
 * which the other process cannot make blocking. Undefined when that socket takes none.
 */
export function connectBy(socket: number, bufferBytes: number): number | undefined {
  const own = findAddon()?.connect(socket, bufferBytes) ?? -1;
  return own < 0 ? undefined : own;
}

let found: { readonly addon: Addon | undefined } | undefined;

function findAddon(): Addon | undefined {
  found ??= { addon: loadAddon() };
  return found.addon;
}

function loadAddon(): Addon | undefined {
  try {
    return createRequire(import.meta.url)(builtFile("descriptors.node")) as Addon;
  } catch {
    // Not built, or for another C library: everything goes through frames.
    return undefined;
  }
}
