import type { FullLimits } from "@coppice/core/backend";
import { type Host, HostCommandError } from "../host/host.js";
import type { JailSettings } from "../jail-freebsd-config.js";

export interface CountedUsage {
  readonly cpuSeconds: number;
  /** Percent of one CPU: 150 is one and a half CPUs. */
  readonly cpuPercent: number;
  readonly memoryBytes: number;
}

/** Message of kernels without accounting, which is a boot or build option. */
const NOT_COUNTED = /RACCT\/RCTL/;
const NO_RULE = /No such process/;

/**
 * Limits and usage of jails with rctl(8). A rule refers to a jail by name: it can exist before the jail and outlives
 * it.
 */
export class ResourceRules {
  readonly #host: Host;
  readonly #settings: JailSettings["limits"];

  constructor(host: Host, settings: JailSettings["limits"]) {
    this.#host = host;
    this.#settings = settings;
  }

  /** @returns the kernel's message when it does no accounting; undefined when it does. */
  async unavailableReason(): Promise<string | undefined> {
    const result = await this.#host.try("rctl", []);
    if (result.code === 0) return undefined;
    if (NOT_COUNTED.test(result.stderr)) return result.stderr.trim();
    throw new HostCommandError("rctl", [], result);
  }

  async set(name: string, { cpuCount, memoryMiB, processes }: FullLimits): Promise<void> {
    const { memoryReservation, openFiles, terminals, threads } = this.#settings;
    const amounts = {
      // memoryuse pages out beyond its amount; swapuse refuses.
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

  async remove(name: string): Promise<void> {
    await this.#host.remove("rctl", ["-r", `jail:${name}`], NO_RULE);
  }

  /** Usage of several jails by one command; unknown jails are left out. */
  async usage(names: readonly string[]): Promise<ReadonlyMap<string, CountedUsage>> {
    if (names.length === 0) return new Map();
    const words = ["-u", ...names.map((name) => `jail:${name}`)];
    const result = await this.#host.try("rctl", words);
    const failed = new Set([...result.stderr.matchAll(/'jail:([^':]+)/g)].map(([, name]) => name));
    const known = names.filter((name) => !failed.has(name));
    // The output has one block per jail, without names, in the order of the arguments.
    const blocks = result.stdout.split(/^(?=cputime=)/m).filter((block) => block !== "");
    if (blocks.length !== known.length) throw new HostCommandError("rctl", words, result);
    return new Map(known.map((name, index) => [name, parseUsage(blocks[index] ?? "")]));
  }
}

function parseUsage(block: string): CountedUsage {
  const amounts = new Map(block.split("\n").map((line) => line.split("=") as [string, string]));
  const amount = (name: string): number => Number(amounts.get(name) ?? 0);
  return { cpuSeconds: amount("cputime"), cpuPercent: amount("pcpu"), memoryBytes: amount("memoryuse") };
}
