import type { Datasets } from "./datasets.js";
import type { CountedUsage, ResourceRules } from "../jails/resource-rules.js";

/** What one sandbox uses. */
export interface SandboxUsage extends CountedUsage {
  /** Bytes that its dataset refers to, what it shares with its origin included. */
  readonly diskBytes: number;
}

interface Sample {
  readonly takenAtMs: number;
  readonly usages: Promise<ReadonlyMap<string, SandboxUsage>>;
}

export interface UsageSamplerOptions {
  readonly datasets: Datasets;
  /** Undefined where the kernel counts nothing: then only disks are looked at. */
  readonly rules: ResourceRules | undefined;
  /** Names of all sandboxes that there are. */
  readonly names: () => readonly string[];
  readonly maximumAgeMs: number;
}

/**
 * What sandboxes use, of all of them by the same two commands: whoever asks a little later is told what was found
 * then.
 */
export class UsageSampler {
  readonly #options: UsageSamplerOptions;
  #last: Sample | undefined;

  constructor(options: UsageSamplerOptions) {
    this.#options = options;
  }

  /** @returns undefined for one that has ended. */
  async of(name: string): Promise<SandboxUsage | undefined> {
    const askedAtMs = performance.now();
    const isFresh = (this.#last?.takenAtMs ?? -Infinity) + this.#options.maximumAgeMs > askedAtMs;
    const found = isFresh ? (await this.#last?.usages)?.get(name) : undefined;
    if (found !== undefined) return found;
    // It may have been made since. Others who ask for the same reason share the answer.
    const last = this.#last !== undefined && this.#last.takenAtMs >= askedAtMs ? this.#last : this.#sample();
    return (await last.usages).get(name);
  }

  #sample(): Sample {
    const sample = { takenAtMs: performance.now(), usages: this.#take() };
    this.#last = sample;
    sample.usages.catch(() => {
      if (this.#last === sample) this.#last = undefined;
    });
    return sample;
  }

  async #take(): Promise<ReadonlyMap<string, SandboxUsage>> {
    const { datasets, rules, names } = this.#options;
    const all = names();
    const [disks, counted] = await Promise.all([datasets.usedBytes(all), rules?.usage(all)]);
    return new Map(
      [...disks].map(([name, diskBytes]) => [
        name,
        { cpuPercent: 0, memoryBytes: 0, ...counted?.get(name), diskBytes },
      ]),
    );
  }
}
