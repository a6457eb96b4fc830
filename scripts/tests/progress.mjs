import { sourceOf } from "./test-files.mjs";

const EACH_MINUTE_MS = 60_000;
const RENEWED_EACH_MS = 1_000;
/** Files that run for less are not named in a log. */
const LONG_MS = 20_000;

/**
 * How far a run of test files is: on a terminal one line that renews itself below what failed, elsewhere a line each
 * minute between the lines of the tests.
 */
export class Progress {
  #files;
  #processes;
  #isRenewed;
  #timer;
  #startedMs = Date.now();
  /** The number of files in which a test has failed. */
  failures = 0;

  /** @param isWhole false for named files, each test of which is shown on a terminal, too. */
  constructor({ files, processes, isWhole }) {
    this.#files = files;
    this.#processes = processes;
    this.#isRenewed = isWhole && process.stdout.isTTY;
    this.#timer = setInterval(() => this.#tell(), this.#isRenewed ? RENEWED_EACH_MS : EACH_MINUTE_MS);
    // Only the tests keep the process.
    this.#timer.unref();
  }

  /** Whether an event of node:test is worth its lines: on a terminal, where all is well, only the closing ones are. */
  shows(type, data) {
    if (!this.#isRenewed) return true;
    if (type === "test:diagnostic") return data.file === undefined;
    return type === "test:fail" || type === "test:summary" || type === "test:stderr";
  }

  print(text) {
    process.stdout.write(this.#isRenewed ? `\r\x1b[2K${text}` : text);
  }

  end() {
    clearInterval(this.#timer);
    this.print("");
  }

  #tell() {
    const nowMs = Date.now();
    const { startedMs, durationsMs } = this.#processes;
    const running = [...startedMs]
      .map(([file, startMs]) => ({ file, ms: nowMs - startMs }))
      .filter(({ ms }) => this.#isRenewed || ms > LONG_MS)
      .map(({ file, ms }) => `${Math.round(ms / 1000)} s ${sourceOf(file)}`);
    const line = [
      `${Math.floor((nowMs - this.#startedMs) / 60_000)} min, ${durationsMs.size} of ${this.#files} files`,
      this.failures === 0 ? "" : `, ${this.failures} failed`,
      running.length === 0 ? "" : `; running: ${running.join(", ")}`,
    ].join("");
    if (this.#isRenewed) this.print(line.slice(0, process.stdout.columns - 1));
    else this.print(`${line}\n`);
  }
}
