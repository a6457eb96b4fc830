import { accessSync, constants, readFileSync, close } from "node:fs";
import { join } from "node:path";
import { createRequire } from "node:module";

/**
 * Path of the agent program: `COPPICE_AGENT` (or `none`), else that of the package for this platform, or of set-up in a
 * checkout. Undefined without an executable one.
 */
export function agentBinary(): string | undefined {
  const chosen = process.env["COPPICE_AGENT"];
  if (chosen === "none") return undefined;
  try {
    const path = chosen || packagedFile("coppice-agent") || builtFile("coppice-agent");
    accessSync(path, constants.X_OK);
    return path;
  } catch {
    return undefined;
  }
}

const require = createRequire(import.meta.url);

/**
 * Path of a native program or addon in the package for this platform, such as `@coppice/agent-linux-x64`. Undefined
 * without that package, as in a checkout, or without that file.
 */
export function packagedFile(name: string): string | undefined {
  try {
    return require.resolve(`@coppice/agent-${process.platform}-${process.arch}/${name}`);
  } catch {
    return undefined;
  }
}

/** Path of a file that set-up built in this checkout. @throws Error when set-up has not run. */
function builtFile(name: string): string {
  const toolchain = join(import.meta.dirname, "../../../.toolchain/agent");
  return join(toolchain, readFileSync(join(toolchain, "current"), "utf8").trim(), name);
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
    return require(packagedFile("descriptors.node") ?? builtFile("descriptors.node")) as Addon;
  } catch {
    // Not built, or for another C library: everything goes through frames.
    return undefined;
  }
}
