const NEW_PACKAGES = /\b(\d+) newly installed/;
/** A package is fetched, unpacked and set up. */
const PACKAGE = /^(?:Get:\d+ |Unpacking |Setting up )/;
const PARTS = 3;
const PERCENT = /(?:^|[^\d.])(\d{1,2}|100)(?:\.\d+)? ?%/;

/** How far the tool of a step is, by what it prints: apt counts packages, and others print per cent. */
export class ToolProgress {
  /** Of the packages that apt installs now. */
  #parts: { done: number; readonly all: number } | undefined;
  #percent: number | undefined;

  /** 0 to 100; undefined where nothing has told. */
  get percent(): number | undefined {
    return this.#percent;
  }

  push(line: string): void {
    const [, packages] = NEW_PACKAGES.exec(line) ?? [];
    if (packages !== undefined) {
      this.#parts = Number(packages) === 0 ? undefined : { done: 0, all: Number(packages) * PARTS };
      this.#percent = undefined;
    } else if (PACKAGE.test(line)) {
      if (this.#parts === undefined) return;
      this.#parts.done = Math.min(this.#parts.done + 1, this.#parts.all);
      this.#percent = Math.floor((100 * this.#parts.done) / this.#parts.all);
    } else {
      const [, percent] = PERCENT.exec(line) ?? [];
      if (percent !== undefined) this.#percent = Number(percent);
    }
  }
}
