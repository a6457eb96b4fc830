import type { FullLimits } from "@coppice/core/backend";
import { type Host, HostCommandError } from "../host/host.js";
import type { JailSettings } from "../jail-freebsd-config.js";

/** Resource usage of a jail, as the kernel counts it. */
export interface CountedUsage {
  /** Of one CPU: 150 is one and a half of them. */
  readonly cpuPercent: number;
  /** Resident memory of all processes. */
  readonly memoryBytes: number;
}

/** How the kernels that count nothing say so: it is a matter of how they were booted, or built. */
const NOT_COUNTED = /RACCT\/RCTL/;
const NO_RULE = /No such process/;

/**
 * What jails may use, as rules of rctl(8), and what they use. A rule is of a name: it can be there before the
 * jail is, and stays when the jail has gone.
 */
export class ResourceRules {
  readonly #host: Host;
  readonly #settings: JailSettings["limits"];

  constructor(host: Host, settings: JailSettings["limits"]) {
    this.#host = host;
    this.#settings = settings;
  }

  /** @returns why this kernel counts nothing, in its own words; undefined when it does. */
  async reasonAgainst(): Promise<string | undefined> {
    const result = await this.#host.try("rctl", []);
    if (result.code === 0) return undefined;
    if (NOT_COUNTED.test(result.stderr)) return result.stderr.trim();
    throw new HostCommandError("rctl", [], result);
  }

  /** Holds a jail to its limits from now on, whatever it was held to before. */
  async set(name: string, { cpuCount, memoryMiB, processes }: FullLimits): Promise<void> {
    const { memoryReservation, openFiles, terminals, threads } = this.#settings;
    const amounts = {
      // More than this is paged out, more than the other is refused.
      memoryuse: `${memoryMiB}M`,
      swapuse: `${Math.round(memoryMiB * memoryReservation)}M`,
      maxproc: String(processes),
      nthr: String(threads),
      openfiles: String(openFiles),
      pseudoterminals: String(terminals),
      pcpu: String(Math.max(1, Math.round(cpuCount * 100))),
    };
    const rules = Object.entries(amounts).map(
      ([resource, amount]) => `jail:${name}:${resource}:deny=${amount}`,
    );
    await this.#host.run("rctl", ["-a", ...rules]);
  }

  /** Lets go of a jail. One without rules is fine. */
  async remove(name: string): Promise<void> {
    await this.#host.remove("rctl", ["-r", `jail:${name}`], NO_RULE);
  }

  /** Usage of jails by one command; those that the kernel does not know are left out. */
  async usage(names: readonly string[]): Promise<ReadonlyMap<string, CountedUsage>> {
    if (names.length === 0) return new Map();
    const words = ["-u", ...names.map((name) => `jail:${name}`)];
    const result = await this.#host.try("rctl", words);
    const failed = new Set([...result.stderr.matchAll(/'jail:([^':]+)/g)].map(([, name]) => name));
    const told = names.filter((name) => !failed.has(name));
    // It says what is used and not by whom: one block for each, in the order in which they were asked for.
    const blocks = result.stdout.split(/^(?=cputime=)/m).filter((block) => block !== "");
    if (blocks.length !== told.length) throw new HostCommandError("rctl", words, result);
    return new Map(told.map((name, index) => [name, parseUsage(blocks[index] ?? "")]));
  }
}

function parseUsage(block: string): CountedUsage {
  const amounts = new Map(block.split("\n").map((line) => line.split("=") as [string, string]));
  return { cpuPercent: Number(amounts.get("pcpu") ?? 0), memoryBytes: Number(amounts.get("memoryuse") ?? 0) };
}
