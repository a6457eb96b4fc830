import { exchange } from "./exchange.js";

type Sample = readonly [name: string, labels: string, value: number];

/** One reading of a server's metrics. */
export class Scrape {
  readonly #samples: readonly Sample[];

  private constructor(samples: readonly Sample[]) {
    this.#samples = samples;
  }

  /** @param opsUrl of the listener that has `/metrics`. */
  static async of(opsUrl: string): Promise<Scrape> {
    const { text } = await exchange(opsUrl, { path: "/metrics" });
    return new Scrape(
      [...text.matchAll(/^([a-z_][a-z_0-9]*)(?:\{(.*)\})? (\S+)$/gm)].map(
        ([, name = "", labels = "", value]) => [name, labels, Number(value)],
      ),
    );
  }

  /** The names of all samples: a histogram has its `_bucket`, `_sum` and `_count`. */
  get names(): ReadonlySet<string> {
    return new Set(this.#samples.map(([name]) => name));
  }

  /** Names of the labels of a metric's samples. */
  labelsOf(name: string): ReadonlySet<string> {
    return new Set(
      this.#samples
        .filter(([sample]) => sample === name)
        .flatMap(([, labels]) => [...labels.matchAll(/([a-z_]+)="/g)].map(([, label = ""]) => label)),
    );
  }

  /** The sum of the samples of a name whose labels contain a text, such as `reason="killed"`. */
  sum(name: string, label = ""): number {
    return this.#samples
      .filter(([sample, labels]) => sample === name && labels.includes(label))
      .reduce((total, [, , value]) => total + value, 0);
  }

  /** Samples of a name that are not 0 and whose labels match, as text. */
  describe(name: string, labels: RegExp): readonly string[] {
    return this.#samples
      .filter(([sample, found, value]) => sample === name && value !== 0 && labels.test(found))
      .map(([sample, found, value]) => `${sample}{${found}} ${value}`);
  }
}
