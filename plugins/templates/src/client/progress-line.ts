import { MEBIBYTE, visibleText } from "@coppice/core";
import type { Transfer } from "../model/builder.js";

export interface Progress {
  /** `pulling`, `step` */
  readonly what: string;
  readonly done: number;
  /** Undefined = unknown. */
  readonly total: number | undefined;
  /** The text behind the bar. */
  readonly text: string;
}

const WIDTH = 24;
const CLEAR = "\r\u001B[K";
/** Time between two lines where there is no terminal. */
const LINE_EVERY_MS = 5_000;

export function transferProgress({ phase, done, total }: Transfer): Progress {
  const size = (bytes: number): string => (bytes / MEBIBYTE).toFixed(1);
  const text = total === undefined ? `${size(done)} MiB` : `${size(done)} of ${size(total)} MiB`;
  return { what: phase, done, total, text };
}

/** Shows progress on stderr: as a bar below all other lines on a terminal, elsewhere as a line now and then. */
export class ProgressLine implements Disposable {
  readonly #stream: Pick<NodeJS.WriteStream, "write" | "isTTY">;
  readonly #print: (line: string) => void;
  #shown = "";
  #last: { readonly what: string; readonly atMs: number } | undefined;

  constructor(
    print: (line: string) => void,
    stream: Pick<NodeJS.WriteStream, "write" | "isTTY"> = process.stderr,
  ) {
    this.#print = print;
    this.#stream = stream;
  }

  show(progress: Progress): void {
    if (this.#stream.isTTY) {
      this.#shown = visibleText(barOf(progress)).replaceAll(/[\t\n]+/g, " ");
      this.#stream.write(CLEAR + this.#shown);
      return;
    }
    const { what, done, total, text } = progress;
    const atMs = performance.now();
    const isDue = this.#last?.what !== what || atMs - this.#last.atMs >= LINE_EVERY_MS;
    if (!isDue && done !== total) return;
    this.#last = { what, atMs };
    this.#stream.write(`${what}: ${text}\n`);
  }

  /** Prints a line above the bar. */
  print(line: string): void {
    if (this.#shown !== "") this.#stream.write(CLEAR);
    this.#print(line);
    if (this.#shown !== "") this.#stream.write(this.#shown);
  }

  /** Takes the bar away. */
  [Symbol.dispose](): void {
    if (this.#shown !== "") this.#stream.write(CLEAR);
    this.#shown = "";
  }
}

function barOf({ what, done, total, text }: Progress): string {
  if (total === undefined || total === 0) return `${what} ${text}`;
  const part = Math.min(1, done / total);
  const bar = "#".repeat(Math.round(part * WIDTH)).padEnd(WIDTH, "-");
  return `${what} [${bar}] ${`${Math.floor(part * 100)}`.padStart(3)} %  ${text}`;
}
