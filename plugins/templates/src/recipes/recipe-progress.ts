import type { Logger } from "@coppice/core";
import type { SandboxBackend } from "@coppice/core/backend";
import type { BuildLog, BuildReason } from "../model/build-record.js";
import type { Transfer } from "../model/builder.js";

/** Beside its steps a build makes its base and its last image. */
const FIRST_AND_LAST = 2;
const LONGEST_TEXT = 100;
/** Of the output of a failed step. */
const MOST_LINES = 20;
const LONGEST_LINE = 500;
/** A layer as the log of a build has it. */
const LAYER = /^(CACHED )?\[[^\]]+\] ([^]*) \[[0-9a-f]{64}\]$/;
const OUTPUT = /^\[builder [^\]]+\] \[std(out|err)\]: /;

export interface RecipeProgressOptions {
  readonly log: Pick<Logger, "debug" | "info" | "warn" | "error">;
  readonly template: string;
  /** Number of its own steps. */
  readonly steps: number;
  /** Of the image that is pulled. */
  readonly transfer: () => Transfer | undefined;
}

/** Tells the server's log how far a build is: a line for each step. What steps print is there for debugging. */
export class RecipeProgress {
  readonly #options: RecipeProgressOptions;
  #step = 1;
  #tool = new ToolProgress();
  /** Line that a tool printed last. */
  #line = "";
  #told = "";
  /** Last lines that the step has printed. */
  readonly #output: string[] = [];

  constructor(options: RecipeProgressOptions) {
    this.#options = options;
  }

  readonly add: BuildLog = ({ level, message, step }) => {
    const { log, template } = this.#options;
    const number = step === "base" ? 1 : step === "finalize" ? this.#of : Number(step) + 1;
    const [, cached = "", layer] = LAYER.exec(message) ?? [];
    // The first line and the last one have no step, and a failure is told when the build has ended.
    const isDetail = step === undefined || ["debug", "error"].includes(level) || OUTPUT.test(message);
    if (layer !== undefined || !isDetail) this.#begin(number);
    else if (step !== undefined && level !== "error") this.#read(message.replace(OUTPUT, ""));
    log[isDetail ? "debug" : level](
      { template, step: number, of: this.#of },
      isDetail
        ? message
        : `template '${template}', step ${number} of ${this.#of}: ${cached}${shorten(layer ?? message)}`,
    );
  };

  /** Tells how far a long step is, where that has changed. */
  tell(): void {
    const { log, template, transfer } = this.#options;
    const pulled = transfer();
    const isPulling = this.#step === 1 && pulled !== undefined && pulled.done !== pulled.total;
    const percent = isPulling ? percentOf(pulled) : this.#tool.percent;
    const text = isPulling ? pulled.phase : shorten(this.#line);
    const how = percent === undefined ? "" : `, ${percent} %`;
    const line = `template '${template}', step ${this.#step} of ${this.#of}${how}: ${text}`;
    if (text === "" || line === this.#told) return;
    this.#told = line;
    log.info({ template, step: this.#step, of: this.#of, ...(percent !== undefined && { percent }) }, line);
  }

  /** Tells what the failed step has printed last, line by line. */
  tellFailure(): void {
    const { log, template } = this.#options;
    for (const line of this.#output) log.error({ template, step: this.#step, of: this.#of }, `  ${line}`);
  }

  get #of(): number {
    return this.#options.steps + FIRST_AND_LAST;
  }

  #begin(step: number): void {
    this.#step = step;
    this.#tool = new ToolProgress();
    this.#line = "";
    this.#output.length = 0;
  }

  #read(line: string): void {
    this.#tool.push(line);
    this.#line = line;
    this.#output.push(line.slice(0, LONGEST_LINE));
    if (this.#output.length > MOST_LINES) this.#output.shift();
  }
}

function percentOf({ done, total }: Transfer): number | undefined {
  return total === undefined || total === 0 ? undefined : Math.floor((100 * done) / total);
}

/** Advice for the operator where a build has failed. */
export function remedyFor(
  { message: reason, step }: BuildReason,
  { name, offline }: SandboxBackend,
  template: string,
): string {
  const [, program] = /(?:has no|does not have the program) (\w+)/.exec(reason) ?? [];
  if (program !== undefined) return `install it (Debian: apt-get install ${program})`;
  if (/^(with )?the archive of /.test(reason))
    return "templates.debian.snapshots names its address; templates.pins: prefer takes the newest packages where it fails";
  const logs = `'coppice template logs <config> ${template}' shows what its steps said`;
  return offline === true && Number(step) > 0
    ? `its steps had no network: see egress of ${name}; ${logs}`
    : logs;
}

function shorten(text: string): string {
  const line = text.trim().replaceAll(/\s+/g, " ");
  return line.length > LONGEST_TEXT ? `${line.slice(0, LONGEST_TEXT)} …` : line;
}

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
