import type { Datasets } from "./datasets.js";
import type { CountedUsage, ResourceRules } from "../jails/resource-rules.js";

interface SandboxUsage extends CountedUsage {
  /** Bytes that its dataset refers to, including those shared with its origin. */
  readonly diskBytes: number;
}

interface Sample {
  readonly takenAtMs: number;
  readonly usages: Promise<ReadonlyMap<string, SandboxUsage>>;
}

interface UsageSamplerOptions {
  readonly datasets: Datasets;
  /** Undefined where the kernel does no accounting: then only disks are measured. */
  readonly rules: ResourceRules | undefined;
  readonly names: () => readonly string[];
}

const MAXIMUM_AGE_MS = 1_000;

/**
 * Resource usage of sandboxes. Two commands measure all of them together; later requests within the maximum age share
 * the result.
 */
export class UsageSampler {
  readonly #options: UsageSamplerOptions;
  #last: Sample | undefined;

  constructor(options: UsageSamplerOptions) {
    this.#options = options;
  }

  /** @returns undefined for an ended sandbox. */
  async of(name: string): Promise<SandboxUsage | undefined> {
    const askedAtMs = performance.now();
    const isFresh = (this.#last?.takenAtMs ?? -Infinity) + MAXIMUM_AGE_MS > askedAtMs;
    const found = isFresh ? (await this.#last?.usages)?.get(name) : undefined;
    if (found !== undefined) return found;
    // It may be newer than the sample. Concurrent requests share the next sample.
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
        { cpuSeconds: 0, cpuPercent: 0, memoryBytes: 0, ...counted?.get(name), diskBytes },
      ]),
    );
  }
}
